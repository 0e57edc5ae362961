"""An engine that needs no model: it speaks the messages of a scheduler and tells the same story to everyone.

Greedy requests get the story from its beginning, sampled ones from a place that depends on the seed. One token
a step and sequence, row slots, stop ids, aborts and figures are as in the real one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from srtkit.spec.messages import (
    Abort,
    Control,
    Deltas,
    Failed,
    Finished,
    Logprobs,
    Message,
    Reply,
    Started,
    Stats,
    Submit,
    decode,
    encode,
    ints,
)
from srtkit.spec.transport import Frames, Receiver, Sender

STORY = "Once a page was full: café, naïve, 日本 and 🙂. STOP Then it was freed."
FILLER = ord("x")


class Channel(Sender, Receiver):
    """Both ends of a channel between two threads."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        self._messages.put([bytes(frame) for frame in frames])

    def receive(self, timeout: float | None) -> list[bytes] | None:
        try:
            return self._messages.get(timeout=timeout) if timeout else self._messages.get_nowait()
        except queue.Empty:
            return None

    def drain(self, timeout: float | None) -> list[list[bytes]]:
        batch = []
        first = self.receive(timeout)
        while first is not None:
            batch.append(first)
            first = self.receive(0)
        return batch

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class _Row:
    request: Submit
    slot: int
    script: Sequence[int]
    made: int = 0


@dataclass
class EngineDouble:
    """`go` cleared holds its steps back; `submitted` and `aborted` are what it was sent."""

    story: Sequence[int]
    eos_id: int
    pace: float = 0.0
    max_rows: int = 64
    requests: Channel = field(default_factory=Channel)
    deltas: Channel = field(default_factory=Channel)
    submitted: list[Submit] = field(default_factory=list)
    aborted: list[Abort] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.rows: dict[int, _Row] = {}
        self.waiting: deque[Submit] = deque()
        self._seen: set[tuple[bytes, bytes]] = set()
        self._started: list[Started] = []
        self._finished: list[Finished] = []
        self._totals = {"prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "aborted": 0, "steps": 0}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine-double", daemon=True)
        self._thread.start()

    @property
    def n_open(self) -> int:
        """Requests it holds."""
        return len(self.rows) + len(self.waiting)

    def fail(self) -> None:
        """Say what a dying engine says, and stop."""
        self._send(Failed("rank 0", "attention:toy", "a step raised", "mend it", 70))
        self.stop()

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            busy = self.n_open > 0 and self.go.is_set()
            for frames in self.requests.drain(0 if busy else 0.02):
                self._absorb(decode(frames[0]))
            if self.n_open and self.go.is_set():
                self._step()
                if not self.n_open:
                    self._send(self._stats())
                time.sleep(self.pace)
            elif self._finished:
                self._flush(-1, [], [], [])

    def _absorb(self, message: Message) -> None:
        if isinstance(message, Submit):
            self.submitted.append(message)
            self.waiting.append(message)
        elif isinstance(message, Abort):
            self.aborted.append(message)
            self._totals["aborted"] += message.reason == "abort"
            for row in [row for row in self.rows.values() if row.request.rid == message.rid]:
                self._end(row, message.reason)
            for request in [one for one in self.waiting if one.rid == message.rid]:
                self.waiting.remove(request)
                self._finished.append(Finished(request.rid, 0, message.reason))
        elif isinstance(message, Control):
            known = message.op in ("flush_cache", "info")
            if known:
                self._seen.clear()
            self._send(Reply(message.id, None, "" if known else f"unknown operation {message.op!r}"))

    def _step(self) -> None:
        while self.waiting and len(self.rows) < self.max_rows:
            self._admit(self.waiting.popleft())
        slots, ids, logprobs = [], [], []
        for row in list(self.rows.values()):
            sampling, token = row.request.sampling, row.script[row.made % len(row.script)]
            if row.made < sampling.min_tokens and token in sampling.stop_ids:
                token = FILLER
            row.made += 1
            slots.append(row.slot)
            ids.append(token)
            if sampling.logprobs >= 0:
                logprobs.append(_logprobs(row.slot, token, sampling.logprobs))
            if token in sampling.stop_ids:
                self._end(row, "stop")
            elif row.made == sampling.max_tokens:
                self._end(row, "length")
        self._totals["steps"] += 1
        self._totals["output_tokens"] += len(ids)
        self._flush(self._totals["steps"], slots, ids, logprobs)

    def _admit(self, request: Submit) -> None:
        slot = min(set(range(1, self.max_rows + 1)) - self.rows.keys())
        key = (request.namespace, request.ids)
        n = len(ints(request.ids))
        cached = n - 1 if key in self._seen else 0
        self._seen.add(key)
        self._totals["prompt_tokens"] += n
        self._totals["cached_tokens"] += cached
        self._started.append(Started(request.rid, slot, cached))
        start = 0 if request.sampling.temperature == 0 else request.sampling.seed % len(self.story)
        script = [*self.story[start:], *self.story[:start], self.eos_id]
        self.rows[slot] = _Row(request, slot, script)

    def _end(self, row: _Row, reason: str) -> None:
        del self.rows[row.slot]
        self._finished.append(Finished(row.request.rid, row.slot, reason))

    def _flush(self, step: int, slots: list[int], ids: list[int], logprobs: list[Logprobs]) -> None:
        column = np.asarray(slots, "<i4")
        self._send(
            Deltas(
                step,
                column.tobytes(),
                np.ones_like(column).tobytes(),
                np.asarray(ids, "<i4").tobytes(),
                tuple(self._started),
                tuple(self._finished),
                tuple(logprobs),
            )
        )
        self._started, self._finished = [], []

    def _stats(self) -> Stats:
        return Stats(
            running=len(self.rows),
            waiting=len(self.waiting),
            pages_used=len(self.rows),
            pages_total=1000,
            retracted=0,
            eager_steps=self._totals["steps"],
            cached_pages=len(self._seen),
            **self._totals,
        )

    def _send(self, message: Message) -> None:
        self.deltas.send([encode(message)])


def _logprobs(slot: int, token: int, n: int) -> Logprobs:
    """The token at -0.25, itself and its neighbours as alternatives, each one less likely by 1."""
    ids = np.asarray([token, *range(token, token + n)], "<i4")
    values = np.asarray([-0.25, *(-0.25 - i for i in range(n))], "<f4")
    return Logprobs(slot, ids.tobytes(), values.tobytes())
