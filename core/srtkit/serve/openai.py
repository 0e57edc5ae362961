"""What chat and completions answers have in common in OpenAI's API: envelope, usage, log-probabilities."""

from __future__ import annotations

from typing import Any, Protocol

from srtkit.serve.generation import Piece, TokenLogprob
from srtkit.serve.service import Job
from srtkit.text.tokenizer import Tokenizer

_LEAST = -9999.0  # JSON has no minus infinity


class Choices(Protocol):
    """How a route writes a choice. `index` is its place in the answer."""

    def part(self, index: int, piece: Piece) -> dict[str, Any]:
        """A choice of a streamed chunk."""

    def whole(self, index: int, piece: Piece) -> dict[str, Any]:
        """A choice of a complete answer."""


class Envelope:
    """The `Shape` of both routes. `objects` are the names of a chunk and of a whole answer."""

    def __init__(self, job: Job, model: str, objects: tuple[str, str], choices: Choices, include_usage: bool) -> None:
        self._job = job
        self._choices = choices
        self._include_usage = include_usage
        self._whole = {"id": job.id, "object": objects[1], "created": job.created, "model": model}
        self._chunk = {**self._whole, "object": objects[0]}

    def event(self, index: int, piece: Piece) -> dict[str, Any]:
        """One chunk with one choice."""
        chunk = {**self._chunk, "choices": [self._choices.part(index, piece)]}
        if self._include_usage:
            chunk["usage"] = None
        return chunk

    def last(self) -> dict[str, Any] | None:
        """The chunk of the usage, if it was asked for."""
        return {**self._chunk, "choices": [], "usage": self._job.usage()} if self._include_usage else None

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        """The whole answer."""
        choices = [self._choices.whole(i, piece) for i, piece in enumerate(pieces)]
        return {**self._whole, "choices": choices, "usage": self._job.usage()}


def clamp(logprob: float) -> float:
    """A log-probability that JSON can carry."""
    return max(logprob, _LEAST)


def token_logprobs(tokenizer: Tokenizer, logprobs: list[TokenLogprob]) -> list[dict[str, Any]]:
    """Log-probabilities as chat answers have them. `bytes` tell parts of characters apart, which `token` cannot."""

    def entry(id_: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(id_)
        return {"token": data.decode(errors="replace"), "logprob": clamp(logprob), "bytes": list(data)}

    return [{**entry(one.id, one.value), "top_logprobs": [entry(*other) for other in one.top]} for one in logprobs]
