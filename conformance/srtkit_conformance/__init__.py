"""The conformance suite: `srt conformance`. Imports nothing but the contract and argparse."""

from __future__ import annotations

from srtkit.spec.cli import CliCommand
from srtkit.spec.hookspecs import hookimpl
from srtkit_conformance.cli import configure, run


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt conformance`."""
    return CliCommand("conformance", "check that a plugin keeps its contract", configure, run)
