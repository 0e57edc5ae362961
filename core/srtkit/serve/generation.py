"""One sequence as its client sees it: tokens become text, stop strings end it, usage is counted.

Knows the tokenizer's pieces and no transport. What arrives while nobody reads is merged into one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from srtkit.spec.messages import Sampling
from srtkit.text.detokenizer import IncrementalDetokenizer
from srtkit.text.stop import StopMatcher
from srtkit.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """What a generation is opened with: tokens, and how its text is to be made."""

    ids: Sequence[int]
    sampling: Sampling
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    namespace: bytes = b""
    priority: int = 0


@dataclass(frozen=True)
class TokenLogprob:
    """A sampled token's log-probability and the likeliest alternatives (id, value), best first."""

    id: int
    value: float
    top: tuple[tuple[int, float], ...]


@dataclass
class Piece:
    """What is new of a generation. `finish_reason` is set on its last piece: stop, length, abort or error."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    error: str = ""

    def merge(self, later: Piece) -> None:
        """Append a later piece."""
        self.text += later.text
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.finish_reason, self.error = later.finish_reason, later.error


class Generation:
    """A running request of the frontend. Fed by `Frontend`, read by one client; `on_news` is called after each feed.

    `prompt_tokens`, `cached_tokens` and `completion_tokens` are its usage so far; `ended` says that no
    further piece will come.
    """

    def __init__(self, rid: int, prompt: Prompt, tokenizer: Tokenizer | None) -> None:
        self.rid = rid
        self.prompt_tokens = len(prompt.ids)
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.started = False
        self.ended = False
        self.pending: Piece | None = None
        skip = prompt.skip_special
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip) if tokenizer is not None else None
        self._stop = StopMatcher(prompt.stop, prompt.include_stop)
        self._stop_ids = frozenset(prompt.sampling.stop_ids)
        self.on_news: Callable[[], None] = lambda: None

    def push(self, ids: list[int], logprobs: list[TokenLogprob]) -> bool:
        """Take new tokens; True when a stop string has just ended it (the engine must be told)."""
        self.completion_tokens += len(ids)
        # A stop id ends the sequence and has no text, whatever the tokenizer says of it.
        shown = [id_ for id_ in ids if id_ not in self._stop_ids]
        text = self._stop.push(self._detokenizer.push(shown)) if self._detokenizer is not None else ""
        self._add(Piece(text, ids, logprobs))
        if self._stop.matched is None:
            return False
        self.finish("stop")
        return True

    def finish(self, reason: str, error: str = "") -> None:
        """No more tokens come: release what was held back."""
        if self.ended:
            return
        self.ended = True
        text = self._stop.push(self._detokenizer.flush()) + self._stop.flush() if self._detokenizer is not None else ""
        self._add(Piece(text, finish_reason=reason, error=error))

    def take(self) -> Piece | None:
        """The merged news, if any."""
        piece, self.pending = self.pending, None
        return piece

    def _add(self, piece: Piece) -> None:
        if self.pending is None:
            self.pending = piece
        else:
            self.pending.merge(piece)
        self.on_news()
