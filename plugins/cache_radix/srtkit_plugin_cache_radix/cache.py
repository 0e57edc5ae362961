"""The contract over the tree: leases, remaps, evicted pages. Knows components by name; policies by option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from srtkit.spec.errors import Unsupported
from srtkit.spec.prefix_cache import (
    CacheEvent,
    CacheKey,
    CacheStats,
    Evicted,
    Lease,
    PrefixCache,
    PrefixCacheBuild,
    Remap,
    Transfer,
)
from srtkit.spec.step_plan import Ints
from srtkit_plugin_cache_radix import RadixOptions
from srtkit_plugin_cache_radix.events import EventLog
from srtkit_plugin_cache_radix.keys import segment_of
from srtkit_plugin_cache_radix.policies import POLICIES
from srtkit_plugin_cache_radix.tree import Node, Tree

PART = "prefix_cache:radix"


class Hold:
    """A lease's token: the node its prefix ends at, its pages [components, pages], and the age it is from."""

    __slots__ = ("age", "node", "open", "pages")

    def __init__(self, node: Node, pages: Ints, age: int) -> None:
        self.node = node
        self.pages = pages
        self.age = age
        self.open = True


class RadixCache(PrefixCache):
    """Pages of equal prefixes are shared by everybody who has the same tokens, spans and namespace."""

    def __init__(self, build: PrefixCacheBuild) -> None:
        """Raises `Unsupported` for a page size or a component it cannot keep."""
        assert isinstance(build.options, RadixOptions)
        _refuse_unknown(build)
        self._page_size = build.page_size
        self._names = tuple(component.name for component in build.components)
        self._tree = Tree(len(self._names), build.page_size, POLICIES[build.options.eviction])
        self._log = EventLog(build.page_size) if build.options.events else None
        self._now = 0
        self._age = 0  # how often it was reset
        self._no_pages = np.empty((len(self._names), 0), np.int32)

    def match(self, key: CacheKey) -> Lease:
        """The longest prefix in whole pages, pinned. Splits a node that is shared only in part."""
        self._now += 1
        node = self._tree.root(key.namespace)
        parts: list[Ints] = []
        for child, common in self._tree.walk(node, segment_of(key, self._usable(key))):
            node = child if common == child.n_tokens else self._tree.split(child, common)
            node.hits += 1
            parts.append(node.pages)
        self._tree.touch(node, self._now, key.priority)
        return self._lease(node, self._joined(parts))

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        """Lengths that `match` would give; changes nothing."""
        lengths = []
        for key in keys:
            root = self._tree.find_root(key.namespace)
            steps = self._tree.walk(root, segment_of(key, self._usable(key))) if root is not None else ()
            lengths.append(sum(common for _, common in steps))
        return lengths

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        """Take the whole pages below `upto`; under a lease from before the last reset, none."""
        hold = _hold(lease)
        leased, count = hold.pages.shape[1], upto // self._page_size
        assert count >= leased, "insert ends before its lease"
        mine = np.array([pages[name][:count] for name in self._names])
        assert mine.shape[1] == count, "insert covers less than it says"
        if hold.age != self._age:
            return lease, self._remaps(mine[:, :leased], hold.pages)
        segment = segment_of(key, count * self._page_size)
        self._now += 1
        node, parts = hold.node, [hold.pages]
        for child, common in self._tree.walk(node, segment.tail(lease.length)):
            node = child if common == child.n_tokens else self._tree.split(child, common)
            parts.append(node.pages)
        theirs = self._joined(parts)
        known = theirs.shape[1]
        remaps = self._remaps(mine[:, :known], theirs)
        if known < count:
            # The pages get memory of their own: the node lives longer than `mine` and may be cut.
            tail = segment.tail(known * self._page_size).copy()
            node = self._tree.attach(node, tail, mine[:, known:].copy(), self._now, key.priority)
            if self._log is not None:
                self._log.stored(node)
            theirs = self._joined([theirs, node.pages])
        self._tree.touch(node, self._now, key.priority)
        longer = self._lease(node, theirs)
        self._close(hold)
        return longer, remaps

    def release(self, lease: Lease) -> Evicted:
        """Unpin; gives back the pages that a reset left to this lease."""
        return self._evicted(self._close(_hold(lease)))

    def evictable(self, component: str) -> int:
        """Pages of every component that no lease covers."""
        assert component in self._names, f"no component {component}"
        return self._tree.evictable

    def evict(self, component: str, n: int) -> Evicted:
        """Free min(n, evictable) pages of every component, from the ends of the leaves that go first."""
        assert component in self._names, f"no component {component}"
        freed: list[Ints] = []
        missing = n
        while missing > 0 and (leaf := self._tree.next_leaf()) is not None:
            count = min(missing, leaf.n_pages)
            if self._log is not None:
                self._log.removed(leaf, count)
            freed.append(self._tree.trim(leaf, count))
            missing -= count
        return self._evicted(freed)

    def transfers(self) -> list[Transfer]:
        """None: there are no tiers."""
        return []

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        """Nothing was asked for, so nothing can have ended."""
        assert not done and not failed, "an ack for a transfer that was never asked for"
        return self._evicted([])

    def events(self) -> list[CacheEvent]:
        """What changed since the last call; nothing unless the option `events` is set."""
        return self._log.take() if self._log is not None else []

    def reset(self) -> Evicted:
        """Forget everything. Leases from before keep their pages until released and grow no more."""
        self._age += 1
        if self._log is not None:
            self._log.cleared()
        return self._evicted(self._tree.clear())

    def stats(self) -> CacheStats:
        """Figures; all components have equally many pages."""
        pinned = self._tree.pinned
        return CacheStats(
            cached_pages=dict.fromkeys(self._names, self._tree.evictable + pinned),
            pinned_pages=dict.fromkeys(self._names, pinned),
            entries=self._tree.nodes,
        )

    def close(self) -> None:
        """Nothing to release."""

    def _usable(self, key: CacheKey) -> int:
        """Tokens of the key that may be matched."""
        length = max(0, min(len(key.ids), key.limit))
        return length - length % self._page_size

    def _lease(self, node: Node, pages: Ints) -> Lease:
        """Pin the prefix that ends at `node` and has these pages."""
        self._tree.pin(node)
        pages.flags.writeable = False
        by_name = {name: pages[row] for row, name in enumerate(self._names)}
        return Lease(pages.shape[1] * self._page_size, by_name, Hold(node, pages, self._age))

    def _close(self, hold: Hold) -> list[Ints]:
        """End a lease; the pages that became free because a reset had forgotten them."""
        hold.open = False
        if hold.age != self._age:
            return self._tree.unpin_forgotten(hold.node)
        self._tree.unpin(hold.node)
        return []

    def _remaps(self, mine: Ints, theirs: Ints) -> list[Remap]:
        """Where the caller's pages are not the cache's."""
        differs = mine != theirs
        if not differs.any():
            return []
        rows, columns = np.nonzero(differs)
        return [
            Remap(self._names[row], index, int(mine[row, index]), int(theirs[row, index]))
            for row, index in zip(rows.tolist(), columns.tolist(), strict=True)
        ]

    def _joined(self, parts: list[Ints]) -> Ints:
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts, axis=1) if parts else self._no_pages

    def _evicted(self, parts: list[Ints]) -> Evicted:
        pages = self._joined(parts)
        return Evicted({name: pages[row] for row, name in enumerate(self._names)})


def _hold(lease: Lease) -> Hold:
    hold = lease.token
    assert isinstance(hold, Hold) and hold.open, "this lease has ended already"
    return hold


def _refuse_unknown(build: PrefixCacheBuild) -> None:
    """Raise `Unsupported` for what the tree does not model."""
    if not 1 <= build.page_size <= 256:
        raise Unsupported(PART, f"page size {build.page_size} is not in 1 … 256", "change memory.page_size")
    for component in build.components:
        what = f"component {component.name}"
        if component.kind != "paged" or component.reach != "all":
            cause = f"{what} is {component.kind} with reach {component.reach}; it keeps paged components of reach all"
            raise Unsupported(PART, cause, 'use another cache, e.g. [prefix_cache] use = "chunk"')
        if component.lookahead:
            # Its pages depend on the next page's tokens, which the tree's keys do not cover.
            cause = f"{what} looks {component.lookahead} tokens ahead"
            raise Unsupported(PART, cause, 'use another cache, e.g. [prefix_cache] use = "chunk"')
