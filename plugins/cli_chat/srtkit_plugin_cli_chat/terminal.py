"""The conversation at a terminal: prompt, streamed replies, slash commands, Ctrl-C. Knows no HTTP."""

from __future__ import annotations

import readline  # noqa: F401  # importing it gives input() line editing and history
from collections.abc import Callable, Generator
from contextlib import closing

from rich.console import Console

from srtkit.spec.errors import ConfigError, SrtError
from srtkit_plugin_cli_chat.client import Delta
from srtkit_plugin_cli_chat.conversation import Conversation

HELP = "/reset forgets the conversation, /system TEXT sets the system message, /quit ends; Ctrl-C stops a reply"

# A model must not be able to move the cursor or recolour the terminal: control characters but tab and newline go.
_CONTROL = {code: None for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """`text` without the control characters that a terminal would obey."""
    return text.translate(_CONTROL)


Reply = Callable[[list[dict[str, str]]], Generator[Delta, None, None]]
"""Starts a reply to these messages; closing the generator stops it."""


class Terminal:
    """Reads turns until the user quits. `ask` reads one line and raises EOFError at the end of input."""

    def __init__(self, console: Console, reply: Reply, system: str | None, ask: Callable[[str], str] = input) -> None:
        self.console = console
        self.conversation = Conversation(system)
        self._reply = reply
        self._ask = ask

    def run(self) -> int:
        """Returns the exit code: 0 after /quit, Ctrl-D, or Ctrl-C at the prompt. Raises `ConfigError`."""
        self.console.print(HELP, style="dim")
        while True:
            try:
                line = self._ask("> ").strip()
            except (EOFError, KeyboardInterrupt):
                self.console.print()
                return 0
            if line == "/quit":
                return 0
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._turn(line)

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/reset":
            self.conversation.reset()
            self.console.print("conversation forgotten", style="dim")
        elif name == "/system":
            self.conversation.system = rest.strip() or None
            self.console.print("system message set" if rest.strip() else "system message removed", style="dim")
        else:
            self.console.print(HELP, style="dim")

    def _turn(self, text: str) -> None:
        """One question and its reply. A stopped or broken reply is kept as far as it came."""
        self.conversation.ask(text)
        said: list[str] = []
        try:
            self._show(said)
        except KeyboardInterrupt:
            self._note("stopped")
        except ConfigError:
            raise  # a mistake in the call, such as a wrong key: no later turn would go better
        except SrtError as error:
            self._note(str(error), style="red")
        if said:
            self.conversation.answer("".join(said))
        else:
            self.conversation.withdraw()

    def _show(self, said: list[str]) -> None:
        """Prints the reply while it comes and appends its pieces to `said`."""
        reason = None
        with closing(self._reply(self.conversation.messages)) as deltas:
            for delta in deltas:
                reason = delta.finish_reason or reason
                if delta.text:
                    said.append(delta.text)
                    self.console.out(printable(delta.text), end="", highlight=False)
        self.console.print()
        if reason == "length":
            self.console.print("(cut: the longest reply allowed)", style="dim")

    def _note(self, text: str, style: str = "dim") -> None:
        self.console.print(f"\n{text}", style=style, markup=False, highlight=False)
