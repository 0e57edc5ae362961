"""Turns, slash commands and Ctrl-C, with a real server where a reply is needed."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from srtkit.spec.errors import ConfigError, EngineError
from srtkit_plugin_cli_chat.client import ChatClient, Delta, Sampling
from srtkit_plugin_cli_chat.conversation import Conversation
from srtkit_plugin_cli_chat.terminal import Terminal, printable

if TYPE_CHECKING:
    from conftest import StubServer

SHELL = """
import argparse, sys
import srtkit_plugin_cli_chat as plugin
parser = argparse.ArgumentParser()
plugin.configure(parser)
sys.exit(plugin.run(parser.parse_args()))
"""


def typed(*lines: str) -> Callable[[str], str]:
    """Stands for the keyboard: these lines, then the end of input."""
    left: Iterator[str] = iter(lines)

    def ask(prompt: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return ask


def talk(stub: StubServer, *lines: str, system: str | None = None) -> str:
    out = io.StringIO()
    with ChatClient(stub.url) as client:
        console = Console(file=out, width=200)
        terminal = Terminal(console, lambda m: client.stream("tiny", m, Sampling()), system, typed(*lines))
        assert terminal.run() == 0
    return out.getvalue()


def test_second_turn_carries_the_first(stub: StubServer) -> None:
    shown = talk(stub, "one", "two", system="be kind")
    assert shown.count("Hello, wörld\n") == 2
    assert [m["content"] for m in stub.bodies[1]["messages"]] == ["be kind", "one", "Hello, wörld", "two"]
    assert [m["role"] for m in stub.bodies[1]["messages"]] == ["system", "user", "assistant", "user"]


def test_reset_keeps_the_system_message(stub: StubServer) -> None:
    talk(stub, "one", "/reset", "two", system="be kind")
    assert [m["content"] for m in stub.bodies[1]["messages"]] == ["be kind", "two"]


def test_system_is_set_and_removed(stub: StubServer) -> None:
    talk(stub, "/system be brief", "one", "/system", "two")
    assert stub.bodies[0]["messages"][0] == {"role": "system", "content": "be brief"}
    assert [m["role"] for m in stub.bodies[1]["messages"]] == ["user", "assistant", "user"]


def test_quit_ends_before_the_next_line(stub: StubServer) -> None:
    talk(stub, "/quit", "never asked")
    assert stub.bodies == []


def test_unknown_command_shows_the_help_and_asks_nobody(stub: StubServer) -> None:
    assert talk(stub, "/rest").count("/reset forgets") == 2  # at the start, and as the answer
    assert stub.bodies == []


def test_refused_turn_is_not_context(stub: StubServer) -> None:
    stub.status, stub.refusal = 503, '{"error": {"message": "queue full"}}'
    out = io.StringIO()
    with ChatClient(stub.url) as client:
        console = Console(file=out, width=200)
        terminal = Terminal(console, lambda m: client.stream("tiny", m, Sampling()), None, typed("one"))
        terminal.run()
    assert "queue full" in out.getvalue()
    assert terminal.conversation.messages == []


def test_a_wrong_key_ends_the_conversation(stub: StubServer) -> None:
    stub.api_key = "other"
    with pytest.raises(ConfigError, match="wants an API key"):
        talk(stub, "one", "two")
    assert len(stub.bodies) == 1


def test_broken_reply_is_kept_as_far_as_it_came() -> None:
    def reply(messages: list[dict[str, str]]) -> Generator[Delta, None, None]:
        yield Delta("half ")
        raise EngineError("server", "gone")

    terminal = Terminal(Console(file=io.StringIO()), reply, None, typed("one"))
    terminal.run()
    assert terminal.conversation.messages[-1] == {"role": "assistant", "content": "half "}


def test_cut_reply_says_so(stub: StubServer) -> None:
    stub.finish = "length"
    assert "cut" in talk(stub, "one")


def test_control_characters_do_not_reach_the_terminal(stub: StubServer) -> None:
    stub.pieces = ["a\x1b[2Jb", "\x9b31mc\td\r\n"]
    assert "a[2Jb31mc    d\n" in talk(stub, "one")
    assert printable("a\té\u200d한\r") == "a\té\u200d한"


def test_conversation_hands_out_a_copy() -> None:
    conversation = Conversation()
    conversation.ask("a")
    conversation.messages.clear()
    assert len(conversation.messages) == 1


class Pty:
    """`srt chat` at a pseudo-terminal."""

    def __init__(self, *args: str) -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-c", SHELL, *args]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=os.environ | {"TERM": "dumb"}
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str, seconds: float = 20.0) -> None:
        """Reads until `text` has appeared behind what was waited for before."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {text!r} within {seconds} s; seen: {self.seen!r}"
            self.seen += os.read(self.master, 4096).decode("utf-8", "replace")
        self.seen = self.seen.split(text, 1)[1]

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())


@pytest.fixture
def at_terminal(stub: StubServer) -> Iterator[Pty]:
    shell = Pty("--url", stub.url)
    yield shell
    if shell.process.poll() is None:
        shell.process.kill()
        shell.process.wait()
    os.close(shell.master)


def test_ctrl_c_stops_the_reply_then_ends(stub: StubServer, at_terminal: Pty) -> None:
    stub.endless = True
    at_terminal.wait_for("> ")
    at_terminal.type("count\n")
    at_terminal.wait_for("wörld...")
    at_terminal.process.send_signal(signal.SIGINT)
    at_terminal.wait_for("stopped")
    assert stub.hung_up.wait(5)
    at_terminal.wait_for("> ")
    at_terminal.process.send_signal(signal.SIGINT)
    assert at_terminal.process.wait(10) == 0
