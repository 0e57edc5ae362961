"""The arguments of `srt bench serve` and `srt bench offline`. Knows argparse only."""

from __future__ import annotations

import argparse
from pathlib import Path

WORKLOAD_NAMES = ("W1", "W2", "W3", "W4")

EPILOG = """workloads (greedy, fixed output length, prompts of random token ids):
  W1  one stream: prompt 128, output 256
  W2  32 requests at once: prompt 256, output 128
  W3  32 requests at once: 1024 shared + 32 own tokens, output 32; a new prefix in every repeat
  W4  64 requests, Poisson arrivals at 4 a second: prompt 128, output 64

examples:
  srt bench serve --url http://127.0.0.1:30000 --workload W2 --json w2.json
  srt bench serve --config configs/quickstart.toml --workload all
  srt bench offline --config configs/quickstart.toml --workload W1 --api generate
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds both commands of `srt bench`."""
    _describe(parser)
    commands = parser.add_subparsers(dest="bench_command", metavar="COMMAND", required=True)
    _add_serve(commands.add_parser("serve", help="measure a server over HTTP"))
    _add_offline(commands.add_parser("offline", help="measure the engine in this process"))


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _describe(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", default="http://127.0.0.1:30000", help="a running server (default: %(default)s)")
    where.add_argument("--config", metavar="FILE", help="start `srt serve --config FILE` on a free port, and end it")
    key = "bearer token, the server's `server.api_key`; @FILE takes a file's content, which `ps` does not show"
    parser.add_argument("--api-key", metavar="KEY|@FILE", type=_api_key, help=key)
    parser.add_argument("--model", help="served name (default: the first that the server lists)")
    parser.add_argument("--allow-remote", action="store_true", help="allow an address that is not loopback")
    parser.add_argument("--pid", type=int, help="the server's process, to measure its memory and CPU time")
    parser.add_argument("--timeout", type=_positive_float, default=300.0, help="seconds for one request (%(default)s)")
    parser.add_argument("--start-timeout", type=_positive_float, default=300.0, help="seconds to become ready")
    parser.add_argument("--flush-cache", action="store_true", help="POST /flush_cache before every repeat")
    _add_common(parser)


def _add_offline(parser: argparse.ArgumentParser) -> None:
    _describe(parser)
    parser.add_argument("--config", metavar="FILE", required=True, help="the engine's configuration")
    how = "astream: latencies too; generate: one call for the whole batch (not W4)"
    parser.add_argument("--api", choices=("astream", "generate"), default="astream", help=how)
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    names = (*WORKLOAD_NAMES, "all")
    parser.add_argument("--workload", nargs="+", choices=names, default=["all"], help="which (default: all)")
    parser.add_argument("--repeats", type=_positive_int, default=3, help="measured repeats, 3 or more to quote (3)")
    parser.add_argument("--warmup", type=_natural, default=1, help="unmeasured repeats before, of at most 8 requests")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals (default: %(default)s)")
    parser.add_argument("--warm-prefix", action="store_true", help="W3: send the prefix once before each repeat")
    ids = "token ids of the prompts; ids below are special in many vocabularies (default: 100:49000)"
    parser.add_argument("--token-ids", metavar="LOW:HIGH", type=_id_range, default=range(100, 49000), help=ids)
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override for --config")
    parser.add_argument("--json", metavar="FILE", help="write the results here, too")


def _api_key(text: str) -> str:
    """The key itself, or the content of the file that is named behind an @."""
    try:
        key = Path(text[1:]).read_text("utf-8").strip() if text.startswith("@") else text
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {text[1:]}: {error}") from error
    if not key or " " in key or not key.isprintable():
        raise argparse.ArgumentTypeError("a key is one word")
    return key


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def _id_range(text: str) -> range:
    low, colon, high = text.partition(":")
    if not colon or int(low) < 0 or int(high) <= int(low):
        raise argparse.ArgumentTypeError("give it as LOW:HIGH with 0 <= LOW < HIGH")
    return range(int(low), int(high))
