"""`srt doctor`: the descriptor. Imports the contract and argparse; the rest is imported by `run`."""

from __future__ import annotations

import argparse

from srtkit.spec.cli import CliCommand
from srtkit.spec.hookspecs import hookimpl


def configure(parser: argparse.ArgumentParser) -> None:
    """`srt doctor` has no arguments."""
    parser.epilog = "example:\n  srt doctor\n\nIt ends with 1 when something fails; warnings do not count."


def run(arguments: argparse.Namespace) -> int:
    """Prints all findings; 1 if one fails."""
    from srtkit_plugin_cli_doctor.findings import columns, examine

    findings = list(examine())
    print(columns(findings))
    return int(any(finding.verdict == "fail" for finding in findings))


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt doctor`."""
    return CliCommand("doctor", "look for what is wrong with this installation", configure, run)
