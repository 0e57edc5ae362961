"""What several sub-commands share: `--config`, `--set`, and a plain table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from srtkit.config.settings import Settings


def add_settings(parser: argparse.ArgumentParser, *, file: bool = True) -> None:
    """Add `--config FILE` (where `file`) and `--set A.B=C`."""
    if file:
        parser.add_argument("--config", type=Path, metavar="FILE", help="settings file (TOML)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="sets",
        metavar="A.B=C",
        help="a setting, over the file's; repeatable",
    )


def add_assume(parser: argparse.ArgumentParser) -> None:
    """Add `--assume ARCHITECTURE`."""
    parser.add_argument(
        "--assume", metavar="ARCH", help="take this architecture from the platform's table, probe nothing"
    )


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
