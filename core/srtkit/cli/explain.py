"""`srt explain`: the wiring plan and the memory plan, before any weight is read."""

import argparse

from srtkit.cli.common import add_assume, add_settings, read_settings


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srt explain`."""
    parser.epilog = "example:\n  srt explain configs/quickstart.toml"
    add_settings(parser)
    add_assume(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation of what `srt serve` would do; what that refuses before weights is refused here."""
    from srtkit.config.prepare import explain, prepare
    from srtkit.serve.prompts import serve_model

    run = prepare(read_settings(arguments), assume=arguments.assume, serving=True)
    serve_model(run)
    print(explain(run))
    return 0
