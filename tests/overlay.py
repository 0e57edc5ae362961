"""A virtual environment that has all that this one has, and into which a test may install more."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hatchling.build import build_editable

from tools.build import build

SRT = """#!{python}
import sys
from srtkit.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""


@dataclass(frozen=True)
class Overlay:
    """An environment in `folder`; `home` is where its commands run by default, and their home directory."""

    folder: Path
    home: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    def run(self, command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; what is in the overlay is found first."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("SRT_", "PYTHON", "PIP_"))}
        own = {"HOME": str(self.home), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return subprocess.run(
            command,
            cwd=cwd or self.home,
            env={**outer, **own, "PATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def install(self, *folders: Path) -> None:
        """Install distributions in place, without network and without what they depend on."""
        build(folders, self.home / "wheels", build_editable)
        pip = [self.python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        done = self.run([*pip, *map(str, (self.home / "wheels").iterdir())])
        assert done.returncode == 0, done.stderr

    def answer(self, code: str, argument: Mapping[str, Any] | Sequence[Any]) -> Any:
        """Run code in a new interpreter; it reads JSON from `sys.argv[1]` and prints JSON in its last line."""
        done = self.run([self.python, "-c", code, json.dumps(argument)])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


def make(folder: Path) -> Overlay:
    """A new overlay in an empty folder."""
    overlay = Overlay(folder / "venv", folder / "home")
    overlay.home.mkdir()
    venv.create(overlay.folder, symlinks=True)
    (site,) = overlay.folder.glob("lib/python*/site-packages")
    below = sysconfig.get_path("purelib")
    (site / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")  # follows .pth files, unlike a path
    srt = overlay.folder / "bin" / "srt"
    srt.write_text(SRT.format(python=overlay.python))
    srt.chmod(0o755)
    return overlay
