"""Text of a running request as its tokens come: bytes to characters, and stop strings found in them.

Knows token bytes and text deltas only.
"""

import codecs
from collections.abc import Iterable, Sequence

from srtkit.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Text of tokens that follow a prompt: what `push` and `flush` return adds up to it, whatever the chunks.

    At most three bytes (an unfinished UTF-8 character) are held back, so the cost of a token does not depend on
    the length of the text. Unlike in `Tokenizer.decode` nothing is taken off the start, where the prompt ends.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._bytes_of = tokenizer.table(skip_special).get
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode

    def push(self, ids: Iterable[int]) -> str:
        """The text that is final now. Ids beyond the vocabulary (padding of the LM head) have no text."""
        return self._decode(b"".join([self._bytes_of(id_, b"") for id_ in ids]))

    def flush(self) -> str:
        """The end: an unfinished character becomes U+FFFD. Nothing may be pushed afterwards."""
        return self._decode(b"", True)


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
