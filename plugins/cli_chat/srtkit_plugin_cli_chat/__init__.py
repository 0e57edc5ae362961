"""`srt chat`: the descriptor and its arguments. Imports nothing but the contract.

The HTTP client and the terminal are imported by `run`.
"""

from __future__ import annotations

import argparse

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
    parser.add_argument("--model", help="served name (default: the first that the server lists)")
    parser.add_argument("--system", help="system message")
    parser.add_argument("--temperature", type=float, help="default: the server's")
    parser.add_argument("--max-tokens", type=int, help="longest reply in tokens (default: the server's)")


def run(args: argparse.Namespace) -> int:
    """Talks, or answers one prompt; returns the exit code."""
    from srtkit_plugin_cli_chat.app import chat

    return chat(args)


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt chat`."""
    return CliCommand("chat", "talk to a running server in the terminal", configure, run)
