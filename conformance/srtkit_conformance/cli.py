"""The arguments of `srt conformance`. The commands themselves are imported when one is run."""

from __future__ import annotations

import argparse
from pathlib import Path

EPILOG = """examples:
  srt conformance run attention:mychip                       all levels but the soak
  srt conformance run attention:mychip --level 1 --report out.json
  srt conformance run attention:mychip --only attention.features.window --seed 3
  srt conformance explain attention.features.window          its clause, and why it usually fails
  srt conformance replay out.json attention.features.window  one check of a report, as it ran there

exit codes: 0 the level is met, 1 checks failed, 2 usage, 3 the plugin could not be loaded, 4 the suite is at fault,
  5 the device is not here
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-commands."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    example = "example: srt conformance run attention:mychip --level 1 --report out.json"
    _add_run(actions.add_parser("run", help="check one plugin", epilog=example))
    listing = actions.add_parser("list", help="the checks of a kind, or of all")
    listing.add_argument("kind", nargs="?", metavar="KIND")
    explain = actions.add_parser(
        "explain",
        help="what a check tests, and typical causes of its failure",
        epilog="example: srt conformance explain attention.features.window",
    )
    explain.add_argument("id", metavar="ID")
    replay = actions.add_parser(
        "replay",
        help="run one check of a report again, under the same circumstances",
        epilog="example: srt conformance replay out.json attention.features.window",
    )
    replay.add_argument("report", type=Path, metavar="REPORT.json")
    replay.add_argument("id", metavar="ID")
    selftest = actions.add_parser("selftest", help="prove the suite with wrong plugins and with legal variants")
    selftest.add_argument("--kind", action="append", metavar="KIND", help="only this kind; repeatable")
    seeds = "fixed seeds 0..N-1 (default: 3, for server 1; loading takes 1)"
    selftest.add_argument("--seeds", type=int, metavar="N", help=seeds)
    selftest.add_argument("--mutant", action="append", metavar="ID", help="only this mutant; repeatable")
    selftest.add_argument("--quick", action="store_true", help="named killers and one seed only, no matrix")
    selftest.add_argument("--matrix", type=Path, metavar="OUT.md", help="write the kill matrix")
    badge = actions.add_parser("badge", help="what a badge service reads, from a report")
    badge.add_argument("report", type=Path, metavar="REPORT.json")
    certificate = actions.add_parser("certificate", help="whether a plugin's certificate holds, and what it declares")
    certificate.add_argument("plugin", metavar="KIND:NAME")
    diff = actions.add_parser("diff", help="what changed between two reports")
    diff.add_argument("before", type=Path, metavar="A.json")
    diff.add_argument("after", type=Path, metavar="B.json")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plugin", metavar="KIND:NAME")
    help_ = "0 loads, 1 the mandatory checks … 4 soak (default: 3, or the highest below that has checks)"
    parser.add_argument("--level", type=int, choices=range(5), help=help_)
    parser.add_argument("--only", action="append", metavar="ID", help="only this check, of any level; repeatable")
    parser.add_argument(
        "--device", "--platform", metavar="PLATFORM[:INDEX]", help="default: cpu, or the platform that is checked"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of every random choice (default: 0)")
    help_ = "times the time limit of each check (default: 1): for a library that compiles kernels on their first call"
    parser.add_argument("--patience", type=float, default=1.0, metavar="N", help=help_)
    parser.add_argument("--waivers", type=Path, metavar="FILE.toml", help="known failures, with reason and expiry")
    parser.add_argument("--report", type=Path, metavar="OUT.json", help="write the report")
    parser.add_argument("--md", type=Path, metavar="OUT.md", help="write the report to be read")
    parser.add_argument("--junit", type=Path, metavar="OUT.xml", help="write JUnit XML")


def run(arguments: argparse.Namespace) -> int:
    """Runs the chosen sub-command; returns the exit code."""
    from srtkit_conformance import commands

    return commands.run(arguments)
