"""The waiting queue: order, bounds, and which sequence may be admitted next. Knows no pages and no cache."""

import heapq
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
        self._policy = policy
        self._heap: list[tuple[int, int, Sequence]] = []
        self._by_rid: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._by_rid)

    def push(self, sequence: Sequence) -> None:
        """Enter the queue."""
        rank = -sequence.request.priority if self._policy == "priority" else 0
        heapq.heappush(self._heap, (rank, sequence.order, sequence))
        self._by_rid[sequence.request.rid] = sequence

    def remove(self, rid: int) -> Sequence | None:
        """Take a sequence out by id; its heap entry dies lazily."""
        return self._by_rid.pop(rid, None)

    def admit(self, accept: Callable[[Sequence], bool | None]) -> None:
        """Offer sequences in order. `accept`: True takes it, None passes over it, False ends the round."""
        passed: list[tuple[int, int, Sequence]] = []
        while self._heap and len(passed) < MAX_PASSED:
            entry = self._heap[0]
            sequence = entry[2]
            if self._by_rid.get(sequence.request.rid) is not sequence:
                heapq.heappop(self._heap)  # removed meanwhile
                continue
            answer = accept(sequence)
            if answer is False:
                break
            heapq.heappop(self._heap)
            if answer:
                del self._by_rid[sequence.request.rid]
            else:
                passed.append(entry)
        for entry in passed:
            heapq.heappush(self._heap, entry)


def common_prefix(a: Ints, b: Ints) -> int:
    """Length of the common prefix of two id arrays."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
