"""`srt chat`: the descriptor and its arguments. Imports nothing but the contract.

The HTTP client and the terminal are imported by `run`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from srtkit.spec.cli import CliCommand
from srtkit.spec.hookspecs import hookimpl

EPILOG = """examples:
  srt chat                                  talk to the server on this machine
  srt chat --system "You answer in French"  with a system message
  srt chat "Name three colours"             one question, one answer
  git diff | srt chat --max-tokens 200      the question from a pipe
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `srt chat`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("prompt", nargs="*", help="ask this, print the reply and end (default: talk, or read a pipe)")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="the server (default: %(default)s)")
    key = "bearer token, the server's `server.api_key`; @FILE takes a file's content, which `ps` does not show"
    parser.add_argument("--api-key", metavar="KEY|@FILE", type=_api_key, help=key)
    parser.add_argument("--model", help="served name (default: the first that the server lists)")
    parser.add_argument("--system", help="system message")
    parser.add_argument("--temperature", type=float, help="default: the server's")
    parser.add_argument("--max-tokens", type=int, help="longest reply in tokens (default: the server's)")


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
    """Talks, or answers one prompt; returns the exit code."""
    from srtkit_plugin_cli_chat.app import chat

    return chat(args)


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt chat`."""
    return CliCommand("chat", "talk to a running server in the terminal", configure, run)
