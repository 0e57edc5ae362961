"""What several sub-commands share: `--config`, `--set`, and a plain table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from srtkit.config.settings import Settings


Action = Callable[[argparse.Namespace], int]


class _OneFile(argparse.Action):
    """Takes one file, on whichever way it is given."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, value: Any, _: Any = None) -> None:
        if value is not None and namespace.config is not None:
            parser.error(f"got two files, {namespace.config} and {value}")
        namespace.config = value or namespace.config


def add_settings(parser: argparse.ArgumentParser, *, positional: bool = True) -> None:
    """Add the settings file, as `--config FILE` or (where `positional`) `FILE`, and `--set A.B=C`."""
    file: dict[str, Any] = {"type": Path, "metavar": "FILE", "help": "settings file (TOML)", "action": _OneFile}
    if positional:
        parser.add_argument("config", nargs="?", **file)
    parser.add_argument("--config", **file)
    text = "a setting, over the file's; repeatable"
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="A.B=C", help=text)


def add_assume(parser: argparse.ArgumentParser) -> None:
    """Add `--assume ARCHITECTURE`."""
    text = "take this architecture from the platform's table, probe nothing"
    parser.add_argument("--assume", metavar="ARCH", help=text)


def add_actions(
    parser: argparse.ArgumentParser, metavar: str, actions: Mapping[str, tuple[Action, str, str]]
) -> list[argparse.ArgumentParser]:
    """Add a sub-parser for each name: what `run_action` runs, the help, an example. The parser shows all examples."""
    parser.epilog, made = "examples:", []
    group = parser.add_subparsers(required=True, metavar=metavar)
    for name, (action, text, words) in actions.items():
        example = f"{parser.prog} {name} {words}"
        parser.epilog += f"\n  {example}"
        made.append(group.add_parser(name, help=text, epilog=f"example: {example}"))
        made[-1].set_defaults(action=action)
    return made


def run_action(arguments: argparse.Namespace) -> int:
    """Run what the chosen sub-parser set as `action`."""
    code: int = arguments.action(arguments)
    return code


def read_settings(arguments: argparse.Namespace) -> Settings:
    """The settings that `--config` and `--set` describe."""
    from srtkit.config.settings import load_settings

    return load_settings(arguments.config, arguments.sets)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns; the last is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
