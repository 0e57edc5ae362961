"""Decides between talking and answering one prompt, and joins client and terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator

from rich.console import Console

from srtkit.spec.errors import ConfigError, EngineError
from srtkit_plugin_cli_chat.client import ChatClient, Delta, Sampling
from srtkit_plugin_cli_chat.conversation import Conversation
from srtkit_plugin_cli_chat.terminal import Terminal, printable


def chat(args: argparse.Namespace) -> int:
    """Runs `srt chat`; raises `SrtError` when there is no server or it refuses."""
    sampling = Sampling(args.temperature, args.max_tokens)
    prompt = " ".join(args.prompt) if args.prompt else None
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
    if prompt is not None and not prompt.strip():
        raise ConfigError("srt chat", "the prompt is empty", "give it as text, or pipe it in")
    with ChatClient(args.url, args.api_key) as client:
        model = args.model or _first_model(client)

        def reply(messages: list[dict[str, str]]) -> Generator[Delta, None, None]:
            return client.stream(model, messages, sampling)

        if prompt is not None:
            return _answer_once(reply(_single(args.system, prompt)))
        console = Console()
        console.print(f"{model} at {client.url}", style="bold", markup=False, highlight=False)
        return Terminal(console, reply, args.system).run()


def _first_model(client: ChatClient) -> str:
    models = client.models()
    if not models:
        raise EngineError(f"server {client.url}", "lists no model", "name one with --model")
    return models[0]


def _single(system: str | None, prompt: str) -> list[dict[str, str]]:
    conversation = Conversation(system)
    conversation.ask(prompt)
    return conversation.messages


def _answer_once(deltas: Generator[Delta, None, None]) -> int:
    """Prints the reply and nothing else; a file or a pipe gets it unchanged."""
    clean = printable if sys.stdout.isatty() else str
    for delta in deltas:
        sys.stdout.write(clean(delta.text))
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
    return 0
