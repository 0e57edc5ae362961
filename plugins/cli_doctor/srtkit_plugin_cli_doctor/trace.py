"""`srt plugins trace`: how a settings file is wired, decision by decision.

Imports the contract and argparse; the rest is imported by `run`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from srtkit.spec.cli import CliCommand
from srtkit.spec.hookspecs import hookimpl

HELP = "every decision and load of wiring a file, with times"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the file, either way, and what may stand over it."""
    parser.epilog = "example: srt plugins trace my.toml"
    file = parser.add_mutually_exclusive_group()
    file.add_argument("file", nargs="?", type=Path, metavar="FILE", help="settings file (TOML)")
    file.add_argument("--config", type=Path, metavar="FILE", help="the same")
    text = "a setting, over the file's; repeatable"
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="A.B=C", help=text)
    text = "take this architecture from the platform's table, probe nothing"
    parser.add_argument("--assume", metavar="ARCH", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Prints what core's log says of it. Raises what wiring raises."""
    import logging
    import sys

    from srtkit.config.settings import load_settings
    from srtkit.plugins.registry import discover
    from srtkit.plugins.wiring import wire

    settings = load_settings(arguments.file or arguments.config, arguments.sets)
    log, handler = logging.getLogger("srtkit.plugins"), logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(relativeCreated)7.1f ms  %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        registry = discover()
        log.debug("discover: %d entry points", len(registry.offers))
        wire(settings, registry, arguments.assume)
    finally:
        log.removeHandler(handler)
    return 0


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt plugins trace`."""
    return CliCommand("plugins-trace", HELP, configure, run)
