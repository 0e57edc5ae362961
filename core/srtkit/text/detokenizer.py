"""Turns the tokens of one request into text as they come. Knows token bytes only; stop strings are in `stop`."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import final

from srtkit.text.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


@final
class IncrementalDetokenizer:
    """Streaming `Tokenizer.decode`: what `push` and `flush` return adds up to it, whatever the chunks.

    At most three bytes (an unfinished UTF-8 character) are held back, so the cost of a token does not depend on
    the length of the text. `continues` says that the tokens follow a prompt; then the first one keeps its
    leading space, which SentencePiece models drop only at the very start of a text.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = True) -> None:
        self._bytes_of = tokenizer.table(skip_special).get
        self._drop_space = tokenizer.drops_leading_space and not continues
        self._decode = _Utf8Decoder(errors="replace").decode

    def push(self, ids: Iterable[int]) -> str:
        """The text that is final now. Ids beyond the vocabulary (padding of the LM head) have no text."""
        return self._started(self._decode(b"".join([self._bytes_of(id_, b"") for id_ in ids])))

    def flush(self) -> str:
        """The end: an unfinished character becomes U+FFFD. Nothing may be pushed afterwards."""
        return self._started(self._decode(b"", True))

    def _started(self, text: str) -> str:
        if text and self._drop_space:
            self._drop_space = False
            return text.removeprefix(" ")
        return text
