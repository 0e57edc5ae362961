"""`srt explain`: the wiring plan and the memory plan, before any weight is read."""

import argparse

from srtkit.cli.common import add_assume, add_settings, read_settings


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srt explain`."""
    parser.epilog = "example:\n  srt explain --config configs/quickstart.toml"
    add_settings(parser)
    add_assume(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    from srtkit.config.prepare import explain

    print(explain(read_settings(arguments), arguments.assume))
    return 0
