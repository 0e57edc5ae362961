"""State snapshots: a node may have one, taken after exactly the tokens of its prefix, in a slot of a budget of its own.

A recurrent state cannot be cut back, so a prefix can be gone on from only where a snapshot stands. Wanted are
those at branches (where another prompt left the path), at the end of a prompt, and every so many tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from srtkit.spec.kv import Component
from srtkit.spec.step_plan import Ints
from srtkit_plugin_cache_radix.budget import NOTHING, Budget, Path
from srtkit_plugin_cache_radix.policies import EvictionQueue, Rank, Ticket, Usage
from srtkit_plugin_cache_radix.tree import Node


class Snapshot:
    """A node's part: the state slot, and how many leases hold it. A node without a snapshot has None."""

    __slots__ = ("pins", "slot", "ticket")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.pins = 0
        self.ticket: Ticket | None = None


class Snapshots(Budget):
    """A lease of a match holds the snapshot at its end, one of an insert none: a running sequence has its own state.

    `every`: tokens between two snapshots that are wanted while a sequence runs on, 0 for none.
    """

    def __init__(
        self, component: Component, place: int, page_size: int, rank: Callable[[Usage], Rank], *, every: int
    ) -> None:
        super().__init__(component, place, page_size)
        self._rank = rank
        self._every = -(-every // page_size) * page_size
        self._queue: EvictionQueue[Node] = EvictionQueue()

    def usable(self, path: Path, length: int) -> int:
        """The deepest snapshot of the path."""
        best = end = 0
        for node, common in path:
            end += common
            if end <= length and common == node.n_tokens and self._of(node) is not None:
                best = end
        return best

    def wanted(self, length: int, found: int, limit: int | None) -> tuple[int, ...]:
        """The branch, which is where the pages that were found end, and the end of the prompt; later at intervals."""
        if limit is not None:
            return tuple(sorted({at for at in (found, limit) if at > length}))
        return (length + self._every - length % self._every,) if self._every else ()

    def lend(self, node: Node, length: int, *, matched: bool) -> Ints:
        """int32 [1], or [0]."""
        snapshot = self._of(node) if matched and length else None
        if snapshot is None:
            return NOTHING
        self.pinned += snapshot.pins == 0
        snapshot.pins += 1
        self._discard(snapshot)
        lent = np.array([snapshot.slot], np.int32)
        lent.flags.writeable = False
        return lent

    def give_back(self, node: Node, entries: Ints, *, forgotten: bool) -> Ints:
        """The snapshot at the node, which still is the one that was lent: what is pinned does not go."""
        if not len(entries):
            return NOTHING
        snapshot = self._of(node)
        assert snapshot is not None and snapshot.slot == entries[0]
        snapshot.pins -= 1
        if snapshot.pins:
            return NOTHING
        self.pinned -= 1
        if forgotten:
            return self._drop(node)
        snapshot.ticket = self._queue.push(self._rank(node), node)
        return NOTHING

    def offer(self, node: Node, offered: Ints, upto: int) -> list[tuple[int, int, int]]:
        """One snapshot a node; the first stays."""
        if not len(offered):
            return []
        assert upto % self.page_size == 0 and node.parent is not None, "a snapshot within a page, or of nothing"
        mine, snapshot = int(offered[0]), self._of(node)
        if snapshot is not None:
            return [(0, mine, snapshot.slot)] if mine != snapshot.slot else []
        node.beside[self.place] = snapshot = Snapshot(mine)
        self.cached += 1
        snapshot.ticket = self._queue.push(self._rank(node), node)
        return []

    def differing(self, lent: Ints, offered: Ints) -> list[tuple[int, int, int]]:
        """A snapshot is of a longer prefix than the lease, and stays the caller's without a word."""
        return []

    def attach(self, node: Node) -> None:
        """None yet."""

    def split(self, upper: Node, lower: Node) -> None:
        """The snapshot is at the end, and so of the lower part."""

    def trim(self, node: Node, keep: int) -> Ints:
        """The end goes, and the snapshot with it."""
        return self._drop(node)

    def evict(self, n: int) -> tuple[Ints, list[Node]]:
        """Those of inner nodes as well as of leaves."""
        gone: list[Ints] = []
        emptied = []
        while len(gone) < n and (node := self._queue.first()) is not None:
            gone.append(self._drop(node))
            emptied.append(node)
        return np.concatenate(gone) if gone else NOTHING, emptied

    def at(self, node: Node) -> Ints:
        """int32 [1], or [0]."""
        snapshot = self._of(node)
        return NOTHING if snapshot is None else np.array([snapshot.slot], np.int32)

    def forget(self, node: Node) -> Ints:
        """A pinned one stays until its leases end."""
        snapshot = self._of(node)
        return NOTHING if snapshot is None or snapshot.pins else self._drop(node)

    # --- bookkeeping ---

    def _of(self, node: Node) -> Snapshot | None:
        found: Snapshot | None = node.beside[self.place] if node.beside else None
        return found

    def _drop(self, node: Node) -> Ints:
        """Take the snapshot away; its slot."""
        snapshot = self._of(node)
        if snapshot is None:
            return NOTHING
        self._discard(snapshot)
        node.beside[self.place] = None
        self.cached -= 1
        return np.array([snapshot.slot], np.int32)

    def _discard(self, snapshot: Snapshot) -> None:
        if snapshot.ticket is not None:
            self._queue.discard(snapshot.ticket)
            snapshot.ticket = None
