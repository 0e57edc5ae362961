"""`srt calibrate kv`: the descriptor and its arguments. Imports no torch; what works is imported by `run`."""

from __future__ import annotations

import argparse
from pathlib import Path

from srtkit.spec.cli import CliCommand
from srtkit.spec.hookspecs import hookimpl

FP8_LARGEST = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0}
"""The largest number of each FP8 dtype of KV."""
MARGIN = 1.25
EXAMPLE = "example:\n  srt calibrate kv --config my.toml --prompts texts.txt"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `srt calibrate`."""
    parser.epilog = EXAMPLE
    actions = parser.add_subparsers(dest="action", required=True, metavar="kv")
    kv = actions.add_parser("kv", help="measure the scales of an FP8 KV cache, a pair a layer", epilog=EXAMPLE)
    kv.add_argument("--config", type=Path, required=True, metavar="FILE", help="settings file of the model (TOML)")
    kv.add_argument(
        "--set", dest="sets", metavar="A.B=C", action="append", default=[], help="a setting, over the file's"
    )
    texts = "a text a line; *.jsonl: a JSON string a line, or an object with one under text or prompt"
    kv.add_argument("--prompts", type=Path, required=True, metavar="FILE", help=texts)
    kv.add_argument("--out", type=Path, metavar="FILE", help="where to write (default: beside the weights)")
    flavour = "what KV will be stored in (default: memory.kv_dtype, else float8_e4m3fn)"
    kv.add_argument("--kv-dtype", choices=sorted(FP8_LARGEST), help=flavour)
    margin = "times the largest magnitude that was seen (default: %(default)s)"
    kv.add_argument("--margin", type=_positive, default=MARGIN, help=margin)
    tokens = "tokens to generate after each text, which count too (default: %(default)s)"
    kv.add_argument("--max-tokens", type=int, default=1, metavar="N", help=tokens)
    kv.add_argument(
        "--attention", default="torch", metavar="NAME", help="backend to compute with (default: %(default)s)"
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def run(args: argparse.Namespace) -> int:
    """0: the file is written."""
    from srtkit_plugin_cli_calibrate.kv import calibrate

    return calibrate(args)


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt calibrate`."""
    return CliCommand("calibrate", "measure the scales of an FP8 KV cache", configure, run)
