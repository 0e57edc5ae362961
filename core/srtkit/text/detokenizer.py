"""Turns the tokens of one request into text as they come. Knows token bytes only; stop strings are in `stop`."""

import codecs
from collections.abc import Iterable

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
