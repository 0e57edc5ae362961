"""Requests to the scheduler, deltas back to generations. Sans IO: it is given a sender and fed messages.

Knows which row slot belongs to which request; no HTTP, no threads, no event loop. All calls come from one thread.
"""

import itertools
from collections.abc import Iterable

import numpy as np

from srtkit.serve.generation import Generation, Prompt, TokenLogprob
from srtkit.spec.errors import SrtError
from srtkit.spec.messages import Abort, Control, Deltas, Logprobs, Message, Stats, Submit, encode, ints
from srtkit.spec.transport import Sender
from srtkit.text.tokenizer import Tokenizer


class QueueFull(SrtError):
    """Too many requests wait; try again later."""


class Frontend:
    """The client side of one engine. `stats` is the engine's latest figures."""

    def __init__(self, sender: Sender, tokenizer: Tokenizer | None, max_waiting: int) -> None:
        self.tokenizer = tokenizer
        self.stats: Stats | None = None
        self.failure: SrtError | None = None
        self._sender = sender
        self.max_waiting = max_waiting
        self._ids = itertools.count(1)
        self._open: dict[int, Generation] = {}  # by request id, until its end has come from the engine
        self._slots: dict[int, Generation] = {}
        self._waiting = 0

    def open(self, prompt: Prompt) -> Generation:
        """Send a request. Raises `QueueFull`, or the engine's failure."""
        self.check()
        if self._waiting >= self.max_waiting:
            raise QueueFull("server", f"{self._waiting} requests are waiting already", "try again later")
        generation = Generation(next(self._ids), prompt, self.tokenizer)
        self._open[generation.rid] = generation
        self._waiting += 1
        data = np.asarray(prompt.ids, "<i4").tobytes()
        self._send(Submit(generation.rid, data, prompt.sampling, prompt.namespace, prompt.priority))
        return generation

    def cancel(self, generations: Iterable[Generation]) -> None:
        """End those that still run towards their client at once; the engine frees their pages at its next step."""
        for generation in generations:
            if generation.rid in self._open and not generation.ended:
                self._send(Abort(generation.rid, "abort"))
            generation.finish("abort")

    def control(self, op: str) -> int:
        """Send an operation; its `Reply` will have the returned id."""
        self.check()
        number = next(self._ids)
        self._send(Control(number, op))
        return number

    def check(self) -> None:
        """Raise the engine's failure, if it has failed."""
        if self.failure is not None:
            raise self.failure

    def feed(self, message: Message) -> None:
        """Take one message about what is open, or figures."""
        if isinstance(message, Deltas):
            self._deltas(message)
        elif isinstance(message, Stats):
            self.stats = message

    def fail(self, error: SrtError) -> None:
        """The engine is gone: every open generation ends with the error."""
        self.failure = error
        for generation in self._open.values():
            generation.finish("error", str(error))
        self._open.clear()
        self._slots.clear()
        self._waiting = 0

    def _deltas(self, deltas: Deltas) -> None:
        for started in deltas.started:
            if (generation := self._open.get(started.rid)) is None:
                continue
            self._slots[started.slot] = generation
            if not generation.started:  # a retracted sequence starts again
                generation.started = True
                generation.cached_tokens = started.cached_tokens
                self._waiting -= 1
        logprobs = {one.slot: _token_logprob(one) for one in deltas.logprobs}
        slots, counts = ints(deltas.slots).tolist(), ints(deltas.counts).tolist()
        ids, at = ints(deltas.ids).tolist(), 0
        for slot, count in zip(slots, counts, strict=True):
            generation = self._slots.get(slot)
            new, at = ids[at : at + count], at + count
            if generation is None or generation.ended:
                continue
            if generation.push(new, [logprobs[slot]] if slot in logprobs else []):
                self._send(Abort(generation.rid, "stop"))
        for finished in deltas.finished:
            if (generation := self._open.pop(finished.rid, None)) is None:
                continue
            if not generation.started:
                self._waiting -= 1
            if self._slots.get(finished.slot) is generation:
                del self._slots[finished.slot]
            generation.finish(finished.reason, finished.detail)

    def _send(self, message: Message) -> None:
        self._sender.send([encode(message)])


def _token_logprob(message: Logprobs) -> TokenLogprob:
    ids = ints(message.ids).tolist()
    values = np.frombuffer(message.values, "<f4").tolist()
    return TokenLogprob(ids[0], values[0], tuple(zip(ids[1:], values[1:], strict=True)))
