"""The author kit: `srt plugin new`. The arguments; imports nothing but the contract and argparse."""

from __future__ import annotations

import argparse
from pathlib import Path

from srtkit.spec.cli import CliCommand
from srtkit.spec.hookspecs import hookimpl

EPILOG = """examples:
  srt plugin new attention mychip                  ./attention_mychip, a package that works
  srt plugin new prefix_cache mine --dest ~/src    ~/src/cache_mine

`srt plugins` lists, shows and traces the plugins that are installed.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-command."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="new")
    new = actions.add_parser(
        "new",
        help="start a plugin from a working skeleton; needs no network",
        epilog="example: srt plugin new attention mychip",
    )
    new.add_argument("kind", metavar="KIND", help="e.g. attention; a wrong one lists all")
    new.add_argument("name", metavar="NAME", help="what a settings file will call it, e.g. mychip")
    new.add_argument("--dest", type=Path, default=Path(), metavar="DIR", help="put its folder here (default: here)")


def run(arguments: argparse.Namespace) -> int:
    """Writes the plugin and says what comes next; returns the exit code."""
    from srtkit_conformance.author.skeleton import create, next_steps

    print(next_steps(arguments.kind, arguments.name, create(arguments.kind, arguments.name, arguments.dest)))
    return 0


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt plugin`."""
    return CliCommand("plugin", "start a plugin of your own", configure, run)
