"""Every block of docs/plugins.md is run, in order, by someone with an empty home directory.

A block's first line says what it is: `console` (commands, and what they print), `file=` (written),
`excerpt=` (stands so in that file), `python` (run; the `text` block after it is what it prints). In printed
text `…` stands for anything, a line of it for any lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import overlay
from tools.dists import ROOT

GUIDE = ROOT / "docs" / "plugins.md"
FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)^```$", re.MULTILINE)
PIP = "python -m pip install "
OFFLINE = "--quiet --no-deps --no-build-isolation "


@dataclass(frozen=True)
class Block:
    """A fenced block, the line it begins in, and its info string's two parts."""

    line: int
    language: str
    path: str
    text: str


def blocks(text: str) -> Iterator[Block]:
    for match in FENCE.finditer(text):
        language, _, path = match[1].partition(" ")
        yield Block(text.count("\n", 0, match.start()) + 1, language, path, match[2])


def prints(expected: str, printed: str) -> bool:
    """Whether `printed` is what `expected` describes."""
    pattern = re.escape(expected.strip()).replace("…", ".*")
    lines = [r"(?:.*\n)*" if line == ".*" else f"{line}\n" for line in pattern.split("\\\n")]
    return re.fullmatch("".join(lines), f"{printed.strip()}\n") is not None


@dataclass
class Reader:
    """Does what the guide says: where commands run, and what the last program printed."""

    overlay: overlay.Overlay
    folder: Path = ROOT
    before: Path = ROOT
    printed: str = ""
    done: list[str] = field(default_factory=list)

    def read(self, block: Block) -> None:
        """Do one block. Raises AssertionError where the guide is wrong."""
        key, _, path = block.path.partition("=")
        if key == "file":
            (self.folder / path).parent.mkdir(exist_ok=True)
            (self.folder / path).write_text(block.text)
        elif key == "excerpt":
            assert block.text in (self.folder / path).read_text(), f"{path} has no such lines"
        elif block.language == "console":
            for step in block.text.removeprefix("$ ").split("\n$ "):
                command, _, expected = step.partition("\n")
                self.command(command)
                assert prints(expected, self.printed), f"$ {command}\n{self.printed}"
        elif block.language == "python":
            self.run([self.overlay.python, "-c", block.text])
        elif block.language == "text":
            assert prints(block.text, self.printed), self.printed
        else:
            assert not block.language, f"a block of {block.language} that is not run"
        self.done.append(block.language)

    def command(self, command: str) -> None:
        """Run a line as a shell would; installing needs no network here."""
        if command.startswith("cd "):
            place = command.removeprefix("cd ").replace("~-", str(self.before)).replace("~", str(self.overlay.home))
            self.before, self.folder, self.printed = self.folder, Path(place), ""
            assert self.folder.is_dir()
            return
        self.run(["bash", "-c", f"exec 2>&1\n{command.replace(PIP, PIP + OFFLINE)}"])

    def run(self, command: list[str]) -> None:
        done = self.overlay.run(command, cwd=self.folder)
        self.printed = done.stdout + done.stderr
        assert done.returncode == 0, self.printed


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_block_of_the_guide(tmp_path: Path) -> None:
    reader = Reader(overlay.make(tmp_path))
    for block in blocks(GUIDE.read_text("utf-8")):
        try:
            reader.read(block)
        except AssertionError as error:
            raise AssertionError(f"docs/plugins.md, line {block.line}: {error}") from None
    assert reader.done.count("console") > 10
    assert reader.done.count("python") > 5


def test_what_counts_as_printed() -> None:
    assert prints("a\nb", "a\nb\n")
    assert prints("", "")
    assert prints("…\n2 passed in …", "..\n\n2 passed in 3 s\n")
    assert prints("a …\n…", "a 1\nb\nc")
    assert not prints("…\n2 passed in …", "12 passed in 3 s\n")
    assert not prints("a", "a\nb")
    assert not prints("a.c", "abc")
    assert not prints("", "a")
