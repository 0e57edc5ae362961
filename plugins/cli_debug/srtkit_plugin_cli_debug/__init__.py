"""`srt debug`: the descriptor and its arguments. Imports the contract and argparse; the rest is imported by `run`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from srtkit.spec.cli import CliCommand
from srtkit.spec.hookspecs import hookimpl

EPILOG = """examples:
  srt debug show srtkit-shadow/triton-layer3-step32-1.safetensors      what a dump holds
  srt debug replay DUMP                                                run it again, and reduce what differs
  srt debug replay DUMP --attention mine --set splits=1                on another backend, with an option
  srt debug signatures ops:aiter                                       is the library that is installed a known one?
  srt debug calls ops:aiter --platform rocm                            does it compute what was recorded?
  srt debug first-run --platform rocm                                  all that new hardware is tried with
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
    _configure_library(actions)


def _configure_library(actions: Any) -> None:
    part = {"metavar": "KIND:NAME", "help": "a plugin that calls a library, e.g. attention:aiter"}
    text = "compare the arguments of a library's functions with those that a plugin was written for; imports nothing"
    signatures = actions.add_parser("signatures", help=text, epilog=EPILOG.splitlines()[4])
    signatures.add_argument("part", **part)
    signatures.add_argument("--source", type=Path, help="an unpacked wheel or a checkout in place of what is installed")
    text = "play the calls of a library that a plugin has recorded on the library itself, and compare the results"
    calls = actions.add_parser("calls", help=text, epilog=EPILOG.splitlines()[5])
    calls.add_argument("part", **part)
    calls.add_argument("--platform", metavar="NAME", required=True, help="where")
    text = "run every check that new hardware is tried with, and write one report"
    first = actions.add_parser("first-run", help=text, epilog=EPILOG.splitlines()[6])
    first.add_argument("--platform", metavar="NAME", required=True, help="e.g. rocm")
    for kind in ("attention", "ops", "graph-runner"):
        first.add_argument(f"--{kind}", metavar="NAME", help="the plugin to try (default: the platform's first choice)")
    first.add_argument("--level", type=int, default=2, choices=range(5), help="of the conformance suite (default: 2)")
    first.add_argument("--seconds", type=float, default=7200, help="after which a step is ended (default: 7200)")
    first.add_argument("--report", type=Path, help="file to write (default: first-run-PLATFORM.md)")


def run(args: argparse.Namespace) -> int:
    """0: shown, or all agree; 1: something differs or failed."""
    if args.action == "signatures":
        from srtkit_plugin_cli_debug import signatures

        return signatures.check(args.part, args.source)
    if args.action == "calls":
        from srtkit_plugin_cli_debug import calls

        return calls.check(args.part, args.platform)
    if args.action == "first-run":
        from srtkit_plugin_cli_debug import first_run

        named = {"attention": args.attention, "ops": args.ops, "graph_runner": args.graph_runner}
        report = args.report or Path(f"first-run-{args.platform}.md")
        return first_run.run(args.platform, named, args.level, report, args.seconds)
    from srtkit_plugin_cli_debug import commands

    return commands.show(args.dump) if args.action == "show" else commands.replay(args)


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt debug`."""
    return CliCommand("debug", "replay dumps of a shadow run, and try new hardware", configure, run)
