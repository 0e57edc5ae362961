"""Pages of one window component: each node has a page or a hole for every page of its tokens, each page its pins.

Only the pages that the tokens after a prefix can still see are needed to go on from it, so all others may go at
any time, also from inner nodes; a later insert can fill a hole again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from srtkit.spec.kv import Component
from srtkit.spec.step_plan import Ints
from srtkit_plugin_cache_radix.budget import NOTHING, Budget, Path
from srtkit_plugin_cache_radix.policies import EvictionQueue, Rank, Ticket, Usage
from srtkit_plugin_cache_radix.tree import Node


class WindowPages:
    """A node's part: `pages` int32 [n], 0 for a hole; `pins` int32 [n], how many leases hold each page."""

    __slots__ = ("pages", "pins", "ticket")

    def __init__(self, pages: Ints, pins: Ints) -> None:
        self.pages = pages
        self.pins = pins
        self.ticket: Ticket | None = None

    def loose(self) -> Ints:
        """Indices of pages that nobody holds."""
        return np.flatnonzero((self.pages != 0) & (self.pins == 0)).astype(np.int32)


class Windows(Budget):
    """Pages go from the node that the policy ranks first, and there from its beginning, which is needed least."""

    def __init__(self, component: Component, place: int, page_size: int, rank: Callable[[Usage], Rank]) -> None:
        super().__init__(component, place, page_size)
        self._rank = rank
        self._queue: EvictionQueue[Node] = EvictionQueue()

    def usable(self, path: Path, length: int) -> int:
        """No page from `first_page` on may be a hole."""
        count = length // self.page_size
        parts = [self._of(node).pages[: common // self.page_size] for node, common in path]
        row = np.concatenate(parts)[:count] if parts else NOTHING
        if row[self.component.first_page(length, self.page_size) :].all():
            return length
        lengths = np.arange(1, count + 1) * self.page_size
        first = np.maximum(lengths - self.component.window + 1, 0) // self.page_size
        last_hole = np.maximum.accumulate(np.where(row == 0, np.arange(count), -1))
        good = np.flatnonzero(last_hole < first)
        return int(lengths[good[-1]]) if len(good) else 0

    def wanted(self, length: int, found: int, limit: int | None) -> tuple[int, ...]:
        """Windows have no snapshots."""
        return ()

    def lend(self, node: Node, length: int, *, matched: bool) -> Ints:
        """int32 [pages of the length], 0 before `first_page` and for holes."""
        row = np.zeros(length // self.page_size, np.int32)
        first = self.component.first_page(length, self.page_size)
        for part, inside, outside in self._slices(node, first, len(row)):
            there = part.pages[inside]
            row[outside] = there
            self.pinned += int(np.count_nonzero((there != 0) & (part.pins[inside] == 0)))
            part.pins[inside] += there != 0
        self._requeue(node, len(row), first)
        row.flags.writeable = False
        return row

    def give_back(self, node: Node, entries: Ints, *, forgotten: bool) -> Ints:
        """The pages named in `entries`; the same positions, whatever has been split since."""
        held = np.flatnonzero(entries)
        if not len(held):
            return NOTHING
        first, freed = int(held[0]), []
        for part, inside, outside in self._slices(node, first, len(entries)):
            part.pins[inside] -= entries[outside] != 0
            loose = (entries[outside] != 0) & (part.pins[inside] == 0)
            self.pinned -= int(np.count_nonzero(loose))
            if forgotten:
                freed.append(part.pages[inside][loose])
                part.pages[inside][loose] = 0
        if not forgotten:
            self._requeue(node, len(entries), first)
            return NOTHING
        gone = np.concatenate(freed)
        self.cached -= len(gone)
        return gone

    def offer(self, node: Node, offered: Ints, upto: int) -> list[tuple[int, int, int]]:
        """Fill holes; pages that stand there already stay the caller's."""
        kept: list[tuple[int, int, int]] = []
        count = upto // self.page_size
        mine = np.flatnonzero(offered[:count])
        if not len(mine):
            return kept
        first = int(mine[0])
        for part, inside, outside in self._slices(node, first, count):
            theirs, given = part.pages[inside], offered[outside]
            taken = (given != 0) & (theirs == 0)
            other = np.flatnonzero((given != 0) & (theirs != 0) & (given != theirs))
            kept += [(outside.start + i, int(given[i]), int(theirs[i])) for i in other.tolist()]
            theirs[taken] = given[taken]
            self.cached += int(np.count_nonzero(taken))
        self._requeue(node, count, first)
        return sorted(kept)

    def differing(self, lent: Ints, offered: Ints) -> list[tuple[int, int, int]]:
        """Pages at the same index."""
        mine = offered[: len(lent)]
        other = np.flatnonzero((mine != 0) & (lent != 0) & (mine != lent))
        return [(i, int(mine[i]), int(lent[i])) for i in other.tolist()]

    def attach(self, node: Node) -> None:
        """All holes."""
        node.beside[self.place] = WindowPages(np.zeros(node.n_pages, np.int32), np.zeros(node.n_pages, np.int32))

    def split(self, upper: Node, lower: Node) -> None:
        """Pages and pins keep their positions."""
        whole, cut = self._of(lower), upper.n_pages
        upper.beside[self.place] = WindowPages(whole.pages[:cut].copy(), whole.pins[:cut].copy())
        whole.pages, whole.pins = whole.pages[cut:].copy(), whole.pins[cut:].copy()
        self._queue_if_loose(upper)
        if whole.ticket is not None and not len(whole.loose()):
            self._discard(whole)

    def trim(self, node: Node, keep: int) -> Ints:
        """Nothing of an unpinned node is pinned."""
        part = self._of(node)
        rest = part.pages[keep:]
        gone: Ints = rest[rest != 0]
        part.pages, part.pins = part.pages[:keep], part.pins[:keep]
        self.cached -= len(gone)
        if part.ticket is not None and not part.pages.any():
            self._discard(part)
        return gone

    def evict(self, n: int) -> tuple[Ints, list[Node]]:
        """From inner nodes as well as from leaves."""
        freed: list[Ints] = []
        emptied = []
        missing = n
        while missing > 0 and (node := self._queue.first()) is not None:
            part = self._of(node)
            loose = part.loose()
            some = loose[:missing]
            freed.append(part.pages[some])
            part.pages[some] = 0
            missing -= len(some)
            if len(some) == len(loose):
                self._discard(part)
            if not part.pages.any():
                emptied.append(node)
        gone = np.concatenate(freed) if freed else NOTHING
        self.cached -= len(gone)
        return gone, emptied

    def at(self, node: Node) -> Ints:
        """int32 [pages of the node], 0 for a hole."""
        return self._of(node).pages

    def forget(self, node: Node) -> Ints:
        """Pinned pages stay until their leases end."""
        part = self._of(node)
        if part.ticket is not None:
            self._discard(part)
        loose = part.loose()
        gone = part.pages[loose]
        part.pages[loose] = 0
        self.cached -= len(gone)
        return gone

    # --- bookkeeping ---

    def _of(self, node: Node) -> WindowPages:
        part: WindowPages = node.beside[self.place]
        return part

    def _slices(self, node: Node | None, first: int, end: int) -> Iterator[tuple[WindowPages, slice, slice]]:
        """Pages `first` to the end of `node`, which is that of page `end`, node by node upwards.

        Each: its part, the pages' places in it, and their indices in the whole prefix.
        """
        while node is not None and end > first:
            start = end - node.n_pages
            low = max(start, first)
            yield self._of(node), slice(low - start, end - start), slice(low, end)
            node, end = node.parent, start

    def _requeue(self, node: Node | None, end: int, first: int) -> None:
        """Pins or pages of these nodes have changed: queue again, by the rank of now, those that may lose pages."""
        while node is not None and end > first:
            end -= node.n_pages
            self._queue_if_loose(node)
            node = node.parent

    def _queue_if_loose(self, node: Node) -> None:
        part = self._of(node)
        if part.ticket is not None:
            self._discard(part)
        if len(part.loose()):
            part.ticket = self._queue.push(self._rank(node), node)

    def _discard(self, part: WindowPages) -> None:
        assert part.ticket is not None
        self._queue.discard(part.ticket)
        part.ticket = None
