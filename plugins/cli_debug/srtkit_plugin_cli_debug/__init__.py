"""`srt debug`: the descriptor and its arguments. Imports the contract and argparse; the rest is imported by `run`."""

from __future__ import annotations

import argparse
from pathlib import Path

from srtkit.spec.cli import CliCommand
from srtkit.spec.hookspecs import hookimpl

EPILOG = """examples:
  srt debug show srtkit-shadow/triton-layer3-step32-1.safetensors      what a dump holds
  srt debug replay DUMP                                                run it again, and reduce what differs
  srt debug replay DUMP --attention mine --set splits=1                on another backend, with an option
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `srt debug`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print what a dump of a shadow run holds", epilog=EPILOG.splitlines()[1])
    show.add_argument("dump", type=Path, help="a file that [attention] shadow has written")
    text = "run a dump's step on a backend and a reference, without the model, and reduce what differs to a few tokens"
    replay = actions.add_parser("replay", help=text, epilog=EPILOG.splitlines()[2])
    replay.add_argument("dump", type=Path, help="a file that [attention] shadow has written")
    replay.add_argument("--attention", metavar="NAME", help="the backend to run (default: the dump's)")
    replay.add_argument("--against", metavar="NAME", help="the reference (default: the dump's)")
    replay.add_argument("--platform", metavar="NAME", help="where both run (default: the dump's)")
    option = "an option of the backend, e.g. --set splits=1; may be given again"
    replay.add_argument("--set", dest="sets", metavar="KEY=VALUE", action="append", default=[], help=option)
    replay.add_argument("--tolerance", type=float, help="times the limit of the dtype (default: the dump's)")
    replay.add_argument("--whole", action="store_true", help="compare the whole step, and reduce nothing")


def run(args: argparse.Namespace) -> int:
    """0: shown, or both agree; 1: they differ."""
    from srtkit_plugin_cli_debug import commands

    return commands.show(args.dump) if args.action == "show" else commands.replay(args)


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt debug`."""
    return CliCommand("debug", "show, replay and reduce dumps of a shadow run", configure, run)
