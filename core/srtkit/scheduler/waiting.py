"""The waiting queue: order, bounds, and which sequence may be admitted next. Knows no pages and no cache."""

from bisect import insort
from collections.abc import Callable
from typing import Literal

import numpy as np

from srtkit.scheduler.sequence import Sequence
from srtkit.spec.step_plan import Ints

Policy = Literal["fcfs", "priority"]
MAX_PASSED = 64  # sequences that one round passes over: a long queue must not be searched in every step


class Waiting:
    """Sequences not yet running. `fcfs` by arrival; `priority` by higher priority, then arrival.

    A retracted sequence keeps its arrival, so it stands before everything that came later.
    """

    def __init__(self, policy: Policy) -> None:
        self._by_priority = policy == "priority"
        self._queue: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._queue)

    def push(self, sequence: Sequence) -> None:
        """Enter the queue."""
        insort(self._queue, sequence, key=lambda one: (-one.request.priority if self._by_priority else 0, one.order))

    def remove(self, rid: int) -> bool:
        """Take a sequence out by id; whether it was there."""
        before = len(self._queue)
        self._queue = [one for one in self._queue if one.request.rid != rid]
        return len(self._queue) < before

    def admit(self, accept: Callable[[Sequence], bool | None]) -> None:
        """Offer sequences in order. `accept`: True takes it, None passes over it, False ends the round."""
        at = 0
        while at < min(len(self._queue), MAX_PASSED):
            answer = accept(self._queue[at])
            if answer is False:
                return
            if answer:
                del self._queue[at]
            else:
                at += 1


def common_prefix(a: Ints, b: Ints) -> int:
    """Length of the common prefix of two id arrays."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
