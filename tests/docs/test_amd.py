"""docs/amd.md: every command of `srt` that it shows parses, and every setting is one that the file takes."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from srtkit.cli import main as cli
from tools.dists import ROOT

PAGE = (ROOT / "docs" / "amd.md").read_text("utf-8")
FENCED = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LINES = {line.strip() for block in FENCED for line in block.splitlines()} | set(re.findall(r"`([^`\n]+)`", PAGE))
COMMANDS = sorted(line for line in LINES if re.match(r"srt \w+ ", line) or line == "srt doctor")
SETTINGS = sorted(one for one in LINES if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+=\w+", one))


def test_there_are_some() -> None:
    assert len(COMMANDS) > 10
    assert len(SETTINGS) == 4


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_parses(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = cli._find

    def found(*given: object) -> object:
        command = find(*given)  # type: ignore[arg-type]
        assert command is not None
        return replace(command, run=lambda arguments: 0)

    monkeypatch.setattr(cli, "_find", found)
    assert cli.main(shlex.split(command)[1:]) == 0


@pytest.mark.parametrize("line", [*(one for one in COMMANDS if "--set" in one and "$" not in one), *SETTINGS])
def test_the_file_takes_the_settings(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)
    sets = [words[at + 1] for at, word in enumerate(words) if word == "--set"] or [line]
    given = [word for one in sets for word in ("--set", one)]
    assert cli.main(["config", "check", "configs/mi300x.toml", "--assume", "gfx942", *given]) == 0


def test_what_it_names_is_there() -> None:
    sources = ROOT / "plugins" / "attention_aiter" / "srtkit_plugin_attention_aiter"
    for file, function in re.findall(r"`(\w+\.py)`, `(\w+)`", PAGE):
        assert f"def {function}(" in Path(sources, file).read_text("utf-8"), f"{file} has no {function}"
    for module in re.findall(r"python -m ([\w.]+)", PAGE):
        assert Path(ROOT, *module.split(".")).with_suffix(".py").is_file(), module
