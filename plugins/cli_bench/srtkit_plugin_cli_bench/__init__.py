"""`srt bench`: the descriptor. Imports the contract and argparse; measuring code is imported by `run`."""

from __future__ import annotations

import argparse

from srtkit.spec.cli import CliCommand
from srtkit.spec.hookspecs import hookimpl
from srtkit_plugin_cli_bench.arguments import configure


def run(args: argparse.Namespace) -> int:
    """Measures and reports; 0 if every request was answered, else 1."""
    if args.bench_command == "serve":
        from srtkit_plugin_cli_bench.serve import bench_serve

        return bench_serve(args)
    from srtkit_plugin_cli_bench.offline import bench_offline

    return bench_offline(args)


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt bench`."""
    return CliCommand(
        name="bench", help="measure a server or an engine under fixed workloads", configure=configure, run=run
    )
