"""What chat and completions answers have in common in OpenAI's API: envelope, usage, log-probabilities."""

from collections.abc import Callable
from typing import Any

from srtkit.serve.generation import Piece, TokenLogprob
from srtkit.serve.service import Job
from srtkit.text.tokenizer import Tokenizer

_LEAST = -9999.0  # JSON has no minus infinity

# How a route writes a choice, given its place in the answer.
Choice = Callable[[int, Piece], dict[str, Any]]


class Envelope:
    """The `Shape` of both routes: a chunk or a whole answer of type `object_`, its choices written by `choice`."""

    def __init__(self, job: Job, model: str, object_: str, choice: Choice, include_usage: bool) -> None:
        self._job = job
        self._choice = choice
        self._include_usage = include_usage
        self._head = {"id": job.id, "object": object_, "created": job.created, "model": model}

    def event(self, index: int, piece: Piece) -> dict[str, Any]:
        """One chunk with one choice."""
        chunk = {**self._head, "choices": [self._choice(index, piece)]}
        return {**chunk, "usage": None} if self._include_usage else chunk

    def last(self) -> dict[str, Any] | None:
        """The chunk of the usage, if it was asked for."""
        return {**self._head, "choices": [], "usage": self._job.usage()} if self._include_usage else None

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        """The whole answer."""
        choices = [self._choice(i, piece) for i, piece in enumerate(pieces)]
        return {**self._head, "choices": choices, "usage": self._job.usage()}


def clamp(logprob: float) -> float:
    """A log-probability that JSON can carry."""
    return max(logprob, _LEAST)


def token_logprobs(tokenizer: Tokenizer, logprobs: list[TokenLogprob]) -> list[dict[str, Any]]:
    """Log-probabilities as chat answers have them. `bytes` tell parts of characters apart, which `token` cannot."""

    def entry(id_: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(id_)
        return {"token": data.decode(errors="replace"), "logprob": clamp(logprob), "bytes": list(data)}

    return [{**entry(one.id, one.value), "top_logprobs": [entry(*other) for other in one.top]} for one in logprobs]
