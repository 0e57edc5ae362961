"""The messages of one conversation. Knows no server and no terminal."""

from __future__ import annotations


class Conversation:
    """System message and turns, in the order the server gets them.

    A turn is open from `ask` to `answer` or `withdraw`; only closed turns are context for the next.
    """

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self._turns: list[dict[str, str]] = []

    @property
    def messages(self) -> list[dict[str, str]]:
        """What to send: the system message, if any, and every turn. A new list."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + list(self._turns)

    def ask(self, text: str) -> None:
        """Opens a turn."""
        self._turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """Closes the open turn with the reply, or with what was said before it was stopped."""
        self._turns.append({"role": "assistant", "content": text})

    def withdraw(self) -> None:
        """Takes the open turn back, because there is no reply to it."""
        self._turns.pop()

    def reset(self) -> None:
        """Forgets all turns; the system message stays."""
        self._turns.clear()
