"""Requests as their clients see them: tokens become text, stop strings end it, usage is counted.

A `Job` is an HTTP request, a `Generation` one of its sequences. Knows the tokenizer's pieces, no transport and no form
of an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from srtkit.serve.requests import GenerationFields
from srtkit.spec.messages import Sampling
from srtkit.spec.routes import Event
from srtkit.text.stream import IncrementalDetokenizer, StopMatcher
from srtkit.text.tokenizer import Tokenizer

Tell = Callable[[Event], None]


@dataclass(frozen=True)
class Prompt:
    """What a generation is opened with: tokens, complete sampling parameters, and the fields that its request had."""

    ids: Sequence[int]
    sampling: Sampling
    fields: GenerationFields = field(default_factory=GenerationFields)


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
    """A running sequence. Fed by `Service`, read by one client; `on_news` is called after each feed.

    What arrives while nobody reads is merged into one piece.

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
        skip, stops = prompt.fields.skip_special_tokens, prompt.fields.stop
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip) if tokenizer is not None else None
        self._stop = StopMatcher([stops] if isinstance(stops, str) else stops, prompt.fields.include_stop_str_in_output)
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


class Job:
    """One HTTP request under way: its generations, `n` for every prompt, in order. `running` are not over yet."""

    def __init__(self, id_: str, generations: Sequence[Generation], n: int, arrived: float, tell: Tell) -> None:
        self.id = id_
        self.created = int(time.time())
        self.generations = generations
        self.running = len(generations)
        self._n = n
        self._arrived = arrived
        self._tell = tell
        self._last = [0.0] * len(generations)  # when each had news; 0 before its first token
        self._woken = asyncio.Event()
        for generation in generations:
            generation.on_news = self._woken.set

    async def news(self) -> list[tuple[int, Piece]]:
        """Wait for something new of any generation; all that is new, by index."""
        while not (found := [(i, piece) for i, one in enumerate(self.generations) if (piece := one.take())]):
            self._woken.clear()
            await self._woken.wait()
        now = time.monotonic()
        for index, piece in found:
            if piece.token_ids:
                last, self._last[index] = self._last[index], now
                self._tell(Event("next_token", now - last) if last else Event("first_token", now - self._arrived))
            if piece.finish_reason is not None:
                self.running -= 1
                self._tell(Event("end", now - self._arrived, piece.finish_reason))
        return found

    async def whole(self) -> list[Piece]:
        """Wait for the ends; the complete pieces, by index."""
        pieces = [Piece() for _ in self.generations]
        while self.running:
            for index, piece in await self.news():
                pieces[index].merge(piece)
        return pieces

    def usage(self) -> dict[str, Any]:
        """OpenAI's figures so far. A prompt counts once, however many choices it has."""
        firsts = self.generations[:: self._n]
        prompt = sum(one.prompt_tokens for one in firsts)
        completion = sum(one.completion_tokens for one in self.generations)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in firsts)},
        }
