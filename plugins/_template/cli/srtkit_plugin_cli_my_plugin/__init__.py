"""`srt my-plugin`: the descriptor and its arguments. The heavy part is imported by `run`."""

from __future__ import annotations

import argparse

from srtkit.spec.cli import CliCommand
from srtkit.spec.hookspecs import hookimpl

EPILOG = """examples:
  srt my-plugin             greet everybody
  srt my-plugin --to Ada    greet one
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `srt my-plugin`."""
    parser.epilog = EPILOG
    parser.add_argument("--to", metavar="NAME", default="world", help="whom to greet (default: %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Greets; returns the exit code."""
    from srtkit_plugin_cli_my_plugin.command import greet

    return greet(arguments.to)


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt my-plugin`."""
    return CliCommand("my-plugin", "say hello", configure, run)
