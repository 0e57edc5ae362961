"""Finds stop strings in streamed text. Knows text deltas only, no tokens."""

from collections.abc import Sequence


class StopMatcher:
    """Ends a text at the stop string that is complete first; of two that end together, at the longer.

    Text that may turn out to begin a stop string is held back, so what `push` returned is never taken back, and
    the result does not depend on how the text was cut. `matched` is the stop string found, else None.
    `include_stop` keeps the stop string in the text.
    """

    def __init__(self, stop_strings: Sequence[str], include_stop: bool = False) -> None:
        assert all(stop_strings), "an empty stop string is refused with the request"
        self.matched: str | None = None
        self._stops = tuple(stop_strings)
        self._include_stop = include_stop
        self._held = ""

    def push(self, delta: str) -> str:
        """The text that is final now; after a match, always empty."""
        if not self._stops:
            return delta
        if self.matched is not None:
            return ""
        text = self._held + delta
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            end, start, self.matched = min(found)
            self._held = ""
            return text[: end if self._include_stop else start]
        keep = min(self._beginning(text, stop) for stop in self._stops)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """The end of the text: what was held back and is no stop string after all."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _beginning(text: str, stop: str) -> int:
        """Where the longest end of `text` begins that `stop` begins with; `len(text)` when there is none."""
        at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while at >= 0 and not stop.startswith(text[at:]):
            at = text.find(stop[0], at + 1)
        return at if at >= 0 else len(text)
