"""A plugin's own git repository beside a fresh environment: edit, install, run, compare, put back.

Knows one plugin at a time and not what is done to it. Uses nothing of the checkout.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.fresh_env import FreshEnv
from tools.serve_from_wheels import Failed

GIT = ("git", "-c", "user.name=A Stranger", "-c", "user.email=stranger@example.org", "-c", "core.hooksPath=/dev/null")


@dataclass
class Workshop:
    """`folder` is the repository, made by `srt plugin new kind name` in the environment's folder."""

    env: FreshEnv
    kind: str
    name: str
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.env.folder / f"{self.kind}_{self.name}"

    @property
    def part(self) -> str:
        """How messages name the plugin."""
        return f"{self.kind}:{self.name}"

    @property
    def distribution(self) -> str:
        """Name of its distribution."""
        return f"srtkit-plugin-{self.kind}-{self.name}"

    def make(self) -> None:
        """Start the plugin and commit it. Raises Failed."""
        self.met(0, ["srt", "plugin", "new", self.kind, self.name, "--dest", str(self.env.folder)], self.part)
        self.git("init", "--quiet")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "As it was made")

    def build(self) -> Path:
        """Build the wheel from what is committed and put it into the environment; returns the wheel's path."""
        wheels = self.env.folder / "wheels"
        self.pip("wheel", "--wheel-dir", str(wheels), str(self.folder))
        (wheel,) = wheels.glob(f"{self.distribution.replace('-', '_')}-*.whl")
        self.pip("install", str(wheel))
        return wheel

    def install(self) -> None:
        """Install the repository in place: edits act at once, but those of pyproject.toml at the next install."""
        self.pip("install", "--editable", str(self.folder))

    def pip(self, action: str, *arguments: str) -> None:
        """Run pip without network. Raises Failed."""
        offline = [] if action == "uninstall" else ["--no-deps", "--no-build-isolation"]
        self.met(0, ["python", "-m", "pip", "--disable-pip-version-check", action, "--quiet", *offline, *arguments])

    def edit(self, place: str, old: str, new: str) -> None:
        """Replace the first `old` in a file of the package (`__init__.py`), or of the repository (`pyproject.toml`)."""
        inside = self.folder / self.distribution.replace("-", "_") / place
        file = inside if inside.exists() else self.folder / place
        text = file.read_text("utf-8")
        assert old in text, f"{place} has no {old!r}"
        file.write_text(text.replace(old, new, 1), "utf-8")

    def restore(self) -> None:
        """Undo all edits; installs again if those of pyproject.toml are among them."""
        changed = self.git("status", "--porcelain")
        self.git("checkout", "--quiet", "--", ".")
        if "pyproject.toml" in changed:
            self.install()

    def git(self, *arguments: str) -> str:
        """Run git in the repository; returns what it printed. Raises CalledProcessError."""
        command = [*GIT, *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True).stdout

    def met(self, code: int, command: Sequence[str], *words: str, seconds: float = 120) -> str:
        """Run a command of the environment, which must end with `code` and say all `words`; returns what it said.

        Raises Failed, with all that was said.
        """
        try:
            done = self.env.run(command, seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"`{' '.join(command)}` did not end within {seconds:g} s") from None
        said = done.stdout + done.stderr
        missing = [word for word in words if word not in said]
        if done.returncode != code or missing:
            wanted = f"{code} and {', '.join(map(repr, missing))}" if missing else str(code)
            raise Failed(f"`{' '.join(command)}` ended with {done.returncode}, not with {wanted}:\n{said}")
        return said
