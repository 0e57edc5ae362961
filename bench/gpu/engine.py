"""An engine in this thread alone, fed with token ids: no text stage, no HTTP, no second thread takes part in a figure.

As peers are measured whose engine has a process of its own and that are asked not to detokenise.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import numpy as np

from srtkit.config.prepare import prepare
from srtkit.config.settings import load_settings
from srtkit.engine.build import build_engine
from srtkit.spec.messages import Control, Deltas, Finished, Sampling, Submit, decode, encode, ints
from srtkit.spec.transport import Frames, Receiver, Sender

Requests = list[tuple[list[int], int]]
"""Prompt ids, and how many tokens to make."""


class _Inbox(Receiver):
    """What `Bare` has queued."""

    def __init__(self) -> None:
        self.queued: list[list[bytes]] = []

    def receive(self, timeout: float | None) -> list[bytes] | None:
        return self.queued.pop(0) if self.queued else None

    def drain(self, timeout: float | None) -> list[list[bytes]]:
        taken, self.queued = self.queued, []
        return taken

    def close(self) -> None:
        pass


class _Outbox(Sender):
    """Notes who has finished, and after how many tokens; keeps all messages of steps while `kept` is a list."""

    def __init__(self) -> None:
        self.finished: dict[int, Finished] = {}
        self.kept: list[Deltas] | None = None

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        message = decode(bytes(frames[0]))
        if isinstance(message, Deltas):
            self.finished |= {one.rid: one for one in message.finished}
            if self.kept is not None:
                self.kept.append(message)

    def close(self) -> None:
        pass


class Bare(AbstractContextManager["Bare"]):
    """Builds an engine of a settings file in the calling thread; `start_s` is how long that took."""

    def __init__(self, file: Path, sets: Iterable[str] = ()) -> None:
        begin = time.perf_counter()
        run = prepare(load_settings(file, list(sets)))
        self.built = build_engine(run.settings, run.loaded, run.facts, run.config, run.path, lambda done, total: None)
        self._inbox, self._outbox = _Inbox(), _Outbox()
        self.loop = self.built.loop(self._inbox, self._outbox)
        self.start_s = round(time.perf_counter() - begin, 1)
        self._rid = 0

    def seconds(self, requests: Requests, *, flush: bool = True) -> float:
        """All requests at once, greedy, until the last has ended; the cache is emptied before unless told otherwise."""
        if flush:
            self._inbox.queued.append([encode(Control(0, "flush_cache"))])
            self.loop.turn()
        for ids, n in requests:
            self._rid += 1
            sampling = Sampling(temperature=0.0, max_tokens=n)
            self._inbox.queued.append([encode(Submit(self._rid, np.asarray(ids, "<i4").tobytes(), sampling))])
        self._outbox.finished.clear()
        begin = time.perf_counter()
        while len(self._outbox.finished) < len(requests):
            self.loop.turn()
        took = time.perf_counter() - begin
        assert {one.reason for one in self._outbox.finished.values()} == {"length"}, "a request ended early"
        return took

    def answers(self, requests: Requests) -> tuple[float, list[list[int]]]:
        """As `seconds`, nothing emptied before; and the tokens of each answer."""
        first, kept = self._rid + 1, []
        self._outbox.kept = kept
        took = self.seconds(requests, flush=False)
        self._outbox.kept = None
        slots: dict[int, int] = {}
        made: list[list[int]] = [[] for _ in requests]
        for one in kept:
            slots |= {begun.slot: begun.rid - first for begun in one.started}
            for slot, token in zip(ints(one.slots).tolist(), ints(one.ids).tolist(), strict=True):
                made[slots[slot]].append(token)
        return took, made

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.built.close()
