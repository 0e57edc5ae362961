"""`srt cache`: the descriptor and its arguments. Imports nothing but the contract.

The HTTP client and the terminal are imported by `run`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from srtkit.spec.cli import CliCommand
from srtkit.spec.hookspecs import hookimpl

EPILOG = """examples:
  srt cache show                            of the server on this machine
  srt cache show http://127.0.0.1:31000     of another one
  srt cache show --limit 200 --json         what /cache answers, for programs
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `srt cache`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="draw the prefixes used most, who holds them, and the tiers")
    show.add_argument("url", nargs="?", default="http://127.0.0.1:30000", help="the server (default: %(default)s)")
    show.add_argument("--limit", type=int, default=40, help="prefixes to draw (default: %(default)s)")
    show.add_argument("--json", action="store_true", help="print the server's answer instead")
    show.add_argument("--svg", type=Path, metavar="FILE", help="write the drawing there, too, as a picture")
    key = "bearer token, the server's `server.api_key`; @FILE takes a file's content, which `ps` does not show"
    show.add_argument("--api-key", metavar="KEY|@FILE", type=_api_key, help=key)


def _api_key(text: str) -> str:
    """The key itself, or the content of the file that is named behind an @."""
    try:
        key = Path(text[1:]).read_text("utf-8").strip() if text.startswith("@") else text
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {text[1:]}: {error}") from error
    if not key or " " in key or not key.isprintable():
        raise argparse.ArgumentTypeError("a key is one word")
    return key


def run(args: argparse.Namespace) -> int:
    """Draws, or prints JSON; returns the exit code."""
    from srtkit_plugin_cli_cache.show import show

    return show(args)


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt cache`."""
    return CliCommand("cache", "draw what the prefix cache of a running server holds", configure, run)
