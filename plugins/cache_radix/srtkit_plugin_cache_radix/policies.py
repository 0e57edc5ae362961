"""Which unpinned leaf goes first: the policies, and the queue that keeps leaves in their order.

A policy is a function from `Usage` to a rank; the smallest rank goes first. A leaf's rank is taken when
it becomes evictable and cannot change while it stays so, because using a leaf pins it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
Rank = tuple[int, ...]
Ticket = list[Any]
"""[rank, serial number, item]; the item is None once the ticket has been discarded."""


class Usage(Protocol):
    """How an entry has been used. Times are ticks of the cache's own clock: no wall clock can confuse it."""

    @property
    def created(self) -> int:
        """When it was inserted."""

    @property
    def used(self) -> int:
        """When it was last matched or inserted over."""

    @property
    def hits(self) -> int:
        """How often it was matched."""

    @property
    def priority(self) -> int:
        """The highest priority of those who used it."""


POLICIES: Mapping[str, Callable[[Usage], Rank]] = {
    "lru": lambda usage: (usage.used,),
    "lfu": lambda usage: (usage.hits, usage.used),
    "fifo": lambda usage: (usage.created,),
    # Segmented LRU: what has been matched at least once outlives everything seen only once.
    "slru": lambda usage: (usage.hits > 0, usage.used),
    "priority": lambda usage: (usage.priority, usage.used),
}


class EvictionQueue(Generic[T]):
    """A heap with lazy deletion: push, discard and first take O(log n), amortised over all calls."""

    def __init__(self) -> None:
        self._heap: list[Ticket] = []
        self._live = 0
        self._serial = 0

    def __len__(self) -> int:
        return self._live

    def push(self, rank: Rank, item: T) -> Ticket:
        """Queue an item; equal ranks leave in the order they came."""
        self._serial += 1
        ticket: Ticket = [rank, self._serial, item]
        heapq.heappush(self._heap, ticket)
        self._live += 1
        return ticket

    def discard(self, ticket: Ticket) -> None:
        """Take an item out. Its ticket stays in the heap until it surfaces or the dead outnumber the living."""
        ticket[2] = None
        self._live -= 1
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [ticket for ticket in self._heap if ticket[2] is not None]
            heapq.heapify(self._heap)

    def first(self) -> T | None:
        """The item that goes first; it stays queued. None when there is none."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heapq.heappop(heap)
        item: T | None = heap[0][2] if heap else None
        return item

    def clear(self) -> None:
        """Forget all items; their tickets must not be used again."""
        self._heap.clear()
        self._live = 0
