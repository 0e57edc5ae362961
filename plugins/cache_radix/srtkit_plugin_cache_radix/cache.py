"""The contract over the tree: leases, remaps, evicted pages. Knows components by name; policies by option.

Pages of reach "all" stand in the tree's nodes, every other component has a budget beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from srtkit.spec.errors import Unsupported
from srtkit.spec.kv import Component
from srtkit.spec.prefix_cache import (
    CacheEvent,
    CacheKey,
    CacheStats,
    Evicted,
    Lease,
    Prefix,
    PrefixCache,
    PrefixCacheBuild,
    Remap,
    Transfer,
)
from srtkit.spec.step_plan import Ints
from srtkit_plugin_cache_radix import RadixOptions
from srtkit_plugin_cache_radix.budget import Budget, Budgets
from srtkit_plugin_cache_radix.events import EventLog
from srtkit_plugin_cache_radix.keys import segment_of
from srtkit_plugin_cache_radix.outline import outlined
from srtkit_plugin_cache_radix.policies import POLICIES, Rank, Usage
from srtkit_plugin_cache_radix.tree import Node, Tree
from srtkit_plugin_cache_radix.windows import Windows

PART = "prefix_cache:radix"
NewBudget = Callable[[Component, int, int, Callable[[Usage], Rank]], Budget]
"""Component, its place among the budgets, page size, policy → the budget."""
BUDGETS: Mapping[str, NewBudget] = {"window": Windows}


class Hold:
    """A lease's token: the node its prefix ends at, its pages [components, pages], and the age it is from.

    `beside` is what the budgets lent.
    """

    __slots__ = ("age", "beside", "node", "open", "pages")

    def __init__(self, node: Node, pages: Ints, beside: Mapping[str, Ints], age: int) -> None:
        self.node = node
        self.pages = pages
        self.beside = beside
        self.age = age
        self.open = True


class RadixCache(PrefixCache):
    """Pages of equal prefixes are shared by everybody who has the same tokens, spans and namespace."""

    def __init__(
        self,
        build: PrefixCacheBuild,
        options: RadixOptions,
        budgets: Mapping[str, NewBudget] = BUDGETS,
        part: str = PART,
        policies: Mapping[str, Callable[[Usage], Rank]] = POLICIES,
    ) -> None:
        """Raises `Unsupported` for a page size, or a component that is neither of reach "all" nor in `budgets`.

        `policies`: a rank for each name that `options.eviction` may be.
        """
        _refuse_unknown(build, frozenset(budgets), part)
        self._page_size = build.page_size
        self._names = tuple(one.name for one in build.components if one.reach == "all")
        others = [one for one in build.components if one.reach != "all"]
        rank = policies[options.eviction]
        self._budgets = Budgets(
            [budgets[one.reach](one, place, build.page_size, rank) for place, one in enumerate(others)]
        )
        self._log = EventLog(build.page_size) if options.events else None
        removed = self._log.removed if self._log is not None else None
        self._tree = Tree(len(self._names), build.page_size, rank, tuple(self._budgets), removed)
        self._now = 0
        self._age = 0  # how often it was reset
        self._no_pages = np.empty((len(self._names), 0), np.int32)
        self._no_pages.flags.writeable = False
        self._nothing = self._evicted([], {})

    def match(self, key: CacheKey) -> Lease:
        """The longest prefix that every component can serve, pinned. Splits a node that is shared only in part."""
        self._now += 1
        node = self._tree.root(key.namespace)
        limit = _limit(key, self._page_size)
        path: Iterable[tuple[Node, int]] = self._tree.walk(node, segment_of(key, limit))
        wanted: tuple[int, ...] = ()
        if self._budgets:
            whole = list(path)
            found = sum(common for _, common in whole)
            length = self._budgets.usable(whole, found)
            path, wanted = _cut(whole, length), self._budgets.wanted(length, found, limit)
        parts: list[Ints] = []
        for child, common in path:
            node = child if common == child.n_tokens else self._tree.split(child, common)
            node.hits += 1
            parts.append(node.pages)
        self._tree.touch(node, self._now, key.priority)
        return self._lease(node, self._joined(parts), wanted, matched=True)

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        """Lengths that `match` would give; changes nothing."""
        lengths = []
        for key in keys:
            root = self._tree.find_root(key.namespace)
            segment = segment_of(key, _limit(key, self._page_size))
            path = list(self._tree.walk(root, segment)) if root is not None else []
            lengths.append(self._budgets.usable(path, sum(common for _, common in path)))
        return lengths

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        """Take the whole pages below `upto`; under a lease from before the last reset, none."""
        hold = _hold(lease)
        leased, count = hold.pages.shape[1], upto // self._page_size
        assert count >= leased, "insert ends before its lease"
        mine = np.array([pages[name][:count] for name in self._names], np.int32).reshape(len(self._names), count)
        if hold.age != self._age:
            return lease, [*self._remaps(mine[:, :leased], hold.pages), *self._budgets.differing(hold.beside, pages)]
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
        wanted: tuple[int, ...] = ()
        if self._budgets:
            remaps += self._budgets.offer(node, pages, upto)
            wanted = self._budgets.wanted(count * self._page_size, count * self._page_size, None)
        self._tree.touch(node, self._now, key.priority)
        longer = self._lease(node, theirs, wanted, matched=False)
        self._close(hold)
        return longer, remaps

    def release(self, lease: Lease) -> Evicted:
        """Unpin; gives back the pages that a reset left to this lease."""
        return self._close(_hold(lease))

    def evictable(self, component: str) -> int:
        """Entries of the component that no lease covers."""
        return self._tree.evictable if component in self._names else self._budgets[component].evictable

    def evict(self, component: str, n: int) -> Evicted:
        """Free min(n, evictable) entries of the component.

        Those of reach "all" go from the ends of the leaves that go first, all components' and budgets' with them;
        a budget loses its own only.
        """
        if component not in self._names:
            beside, emptied = self._budgets[component].evict(n)
            self._tree.prune(emptied)
            return Evicted({component: beside})
        freed: list[list[Ints]] = []
        missing = n
        while missing > 0 and (leaf := self._tree.next_leaf()) is not None:
            count = min(missing, leaf.n_pages)
            freed.append(self._tree.trim(leaf, count))
            missing -= count
        gone = {budget.component.name: [one[1 + budget.place] for one in freed] for budget in self._budgets}
        return self._evicted([one[0] for one in freed], gone)

    def transfers(self) -> list[Transfer]:
        """None: there are no tiers."""
        return []

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        """Nothing was asked for, so nothing can have ended."""
        assert not done and not failed, "an ack for a transfer that was never asked for"
        return self._nothing

    def events(self) -> list[CacheEvent]:
        """What changed since the last call; nothing unless the option `events` is set."""
        return self._log.take() if self._log is not None else []

    def reset(self) -> Evicted:
        """Forget everything. Leases from before keep their pages until released and grow no more."""
        self._age += 1
        if self._log is not None:
            self._log.cleared()
        pages, beside = self._tree.clear()
        return self._evicted(pages, {budget.component.name: beside[budget.place] for budget in self._budgets})

    def stats(self) -> CacheStats:
        """Figures; all components of reach "all" have equally many pages."""
        pinned = dict.fromkeys(self._names, self._tree.pinned)
        cached = dict.fromkeys(self._names, self._tree.evictable + self._tree.pinned)
        for budget in self._budgets:
            cached[budget.component.name], pinned[budget.component.name] = budget.cached, budget.pinned
        return CacheStats(cached_pages=cached, pinned_pages=pinned, entries=self._tree.nodes)

    def outline(self, limit: int, tokens: int) -> Sequence[Prefix]:
        """The nodes of the tree that were matched most often, then those used last."""
        return outlined(self._tree.roots, limit, tokens, self._pages_of)

    def close(self) -> None:
        """Nothing to release."""

    def _pages_of(self, node: Node) -> dict[str, Ints]:
        """What stands at a node, copied, by component."""
        beside = {budget.component.name: budget.at(node).copy() for budget in self._budgets}
        return {name: node.pages[row].copy() for row, name in enumerate(self._names)} | beside

    def _lease(self, node: Node, pages: Ints, wanted: tuple[int, ...], *, matched: bool) -> Lease:
        """Pin the prefix that ends at `node` and has these pages."""
        self._tree.pin(node)
        pages.flags.writeable = False
        by_name = {name: pages[row] for row, name in enumerate(self._names)}
        length = pages.shape[1] * self._page_size
        hold = Hold(node, pages, {}, self._age)
        if self._budgets:
            hold.beside = self._budgets.lend(node, length, matched=matched)
            by_name |= hold.beside
        return Lease(length, by_name, hold, snapshot_at=wanted)

    def _close(self, hold: Hold) -> Evicted:
        """End a lease; the pages that became free because a reset had forgotten them."""
        hold.open = False
        forgotten = hold.age != self._age
        beside = self._budgets.give_back(hold.node, hold.beside, forgotten=forgotten) if self._budgets else {}
        if forgotten:
            return self._evicted(self._tree.unpin_forgotten(hold.node), beside)
        self._tree.unpin(hold.node)
        return self._nothing

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

    def _evicted(self, parts: list[Ints], beside: Mapping[str, list[Ints]]) -> Evicted:
        """Pages of reach "all" [components, pages], and entries of the budgets by component, those that have any."""
        pages = self._joined(parts)
        by_name = {name: pages[row] for row, name in enumerate(self._names)}
        return Evicted(by_name | {name: np.concatenate(gone) for name, gone in beside.items() if gone})


def _cut(path: Sequence[tuple[Node, int]], length: int) -> Iterator[tuple[Node, int]]:
    """The path as far as `length`."""
    for node, common in path:
        if length <= 0:
            return
        yield node, min(common, length)
        length -= common


def _limit(key: CacheKey, page_size: int) -> int:
    """Tokens of the key that may be matched."""
    length = max(0, min(len(key.ids), key.limit))
    return length - length % page_size


def _hold(lease: Lease) -> Hold:
    hold = lease.token
    assert isinstance(hold, Hold) and hold.open, "this lease has ended already"
    return hold


def _refuse_unknown(build: PrefixCacheBuild, budgets: frozenset[str], part: str) -> None:
    """Raise `Unsupported` for what the tree does not model."""
    if not 1 <= build.page_size <= 256:
        raise Unsupported(part, f"page size {build.page_size} is not in 1 … 256", "change memory.page_size")
    for component in build.components:
        what = f"component {component.name}"
        if component.reach != "all" and component.reach not in budgets:
            kept = ", ".join(sorted(budgets | {"all"}))
            cause = f"{what} has reach {component.reach}; it keeps components of reach {kept}"
            raise Unsupported(part, cause, 'use another cache, e.g. [prefix_cache] use = "chunk"')
        if (component.kind == "slot") != (component.reach == "snapshot"):
            raise Unsupported(part, f"{what} is of kind {component.kind} with reach {component.reach}")
        if component.lookahead:
            # Its pages depend on the next page's tokens, which the tree's keys do not cover.
            cause = f"{what} looks {component.lookahead} tokens ahead"
            raise Unsupported(part, cause, 'use another cache, e.g. [prefix_cache] use = "chunk"')
