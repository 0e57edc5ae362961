"""The command does what its help says, through the parser that core would make."""

from __future__ import annotations

import argparse

import pytest

from srtkit.spec.errors import ConfigError
from srtkit_plugin_cli_my_plugin import srtkit_cli


def run(*arguments: str) -> int:
    command = srtkit_cli()
    parser = argparse.ArgumentParser(prog=f"srt {command.name}")
    command.configure(parser)
    return command.run(parser.parse_args(arguments))


@pytest.mark.parametrize(("arguments", "text"), [((), "hello, world\n"), (("--to", "Ada"), "hello, Ada\n")])
def test_greets(arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 0
    assert capsys.readouterr().out == text


def test_nobody_cannot_be_greeted() -> None:
    with pytest.raises(ConfigError, match="nobody"):
        run("--to", " ")
