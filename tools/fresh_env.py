"""A virtual environment in a temporary folder with wheels of dist/ in it: what a user's machine looks like.

Installs under the same constraints as development. Nothing of the checkout is importable there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.dists import ROOT
from tools.linked import link, required


@dataclass(frozen=True)
class FreshEnv:
    """A virtual environment in `folder`; commands run with `folder` as the working directory."""

    folder: Path

    @property
    def site_packages(self) -> Path:
        """Where its distributions are."""
        return self.folder / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def program(self, name: str) -> str:
        """Path of an installed script or of `python`."""
        return str(self.folder / "venv" / "bin" / name)

    def install(self, *arguments: str) -> None:
        """`pip install` under the constraints. Raises CalledProcessError if it fails.

        What they require and the development environment has is linked beforehand, so that pip finds it installed: it
        decides as ever what is needed in which version, but need not unpack gigabytes.
        """
        link(required(arguments, deep="--no-deps" not in arguments), self.site_packages)
        pip = [self.program("python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
        subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), *arguments], check=True)

    def run(self, command: Sequence[str], seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Runs a program of this environment to its end and returns what it printed and its exit code.

        Raises TimeoutExpired after `seconds`, when it has been killed.
        """
        return subprocess.run(
            [self.program(command[0]), *command[1:]],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


@contextmanager
def fresh_env() -> Iterator[FreshEnv]:
    """Makes an environment with nothing but pip and removes it afterwards."""
    with tempfile.TemporaryDirectory(prefix="srtkit-") as name:
        env = FreshEnv(Path(name))
        venv.create(env.folder / "venv", symlinks=True)
        link(required(["pip"]), env.site_packages)
        yield env
