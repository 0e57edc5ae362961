"""Random traces: this cache and `radix` give the same leases, pages, remaps, evicted pages, figures and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import srtkit_plugin_cache_radix as radix
import srtkit_plugin_cache_radix_native as native
from srtkit.spec.kv import FULL, Component
from srtkit.spec.prefix_cache import CacheKey, Lease, Prefix, PrefixCache, PrefixCacheBuild
from srtkit.spec.step_plan import Ints
from srtkit_plugin_cache_radix_native.cache import NativeRadixCache

STEPS = 150
POLICIES = ("lru", "lfu", "fifo", "slru", "priority")
ALL_BITS = 2**64 - 1


@dataclass
class Open:
    """A sequence that has a lease in both caches."""

    key: CacheKey
    leases: list[Lease]


class Trace:
    """One random trace over both. Two token ids, so that prefixes meet and part everywhere."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.page_size = int(self.random.choice([1, 2, 4, 7]))
        components = (FULL, Component("indexer"))[: 1 + seed % 2]
        self.names = tuple(component.name for component in components)
        options = {"eviction": POLICIES[seed % 5], "events": bool(self.random.random() < 0.5)}
        # Few bits: unequal pages meet in one place of the children, and only comparing tells them apart.
        mask = int(self.random.choice(np.array([0, 1, ALL_BITS], np.uint64)))
        mine = PrefixCacheBuild(self.page_size, components, native.RadixOptions.model_validate(options))
        other = PrefixCacheBuild(self.page_size, components, radix.RadixOptions.model_validate(options))
        self.caches: tuple[PrefixCache, PrefixCache] = (NativeRadixCache(mine, mask), radix.build(other))
        self.open: list[Open] = []
        self.next_page = 1
        self.seen = dict.fromkeys(("matched", "remapped", "evicted", "left by reset", "events", "shown"), 0)

    def run(self) -> None:
        """All steps; everything is compared after each."""
        actions = (self.match, self.insert, self.insert, self.release, self.evict, self.peek, self.reset)
        chances = (0.25, 0.14, 0.14, 0.25, 0.16, 0.05, 0.01)
        for _ in range(STEPS):
            actions[int(self.random.choice(len(actions), p=chances))]()
            self.compare_figures()
        while self.open:
            self.release()
        self.evict(10**6)
        self.compare_figures()

    def key(self) -> CacheKey:
        ids = self.random.integers(0, 2, int(self.random.integers(0, 8 * self.page_size)), dtype=np.int32)
        if self.open and self.random.random() < 0.5:
            before = self.open[int(self.random.integers(len(self.open)))].key.ids
            ids = np.concatenate([before[: int(self.random.integers(0, len(before) + 1))], ids])
        spans = []
        if len(ids) > 4 and self.random.random() < 0.3:
            cuts = sorted(self.random.choice(len(ids) + 1, 4, replace=False).tolist())
            spans = [(cuts[at], cuts[at + 1], bytes([int(self.random.integers(2))])) for at in (2, 0)]
        limit = 2**31 - 1 if self.random.random() < 0.5 else int(self.random.integers(-1, len(ids) + 1))
        namespace = (b"", b"adapter\0" * 3)[int(self.random.random() < 0.2)]
        return CacheKey(ids, namespace, tuple(spans), limit, int(self.random.integers(-2, 3)))

    def match(self) -> None:
        key = self.key()
        mine, other = (cache.match(key) for cache in self.caches)
        assert_same_lease(mine, other)
        self.seen["matched"] += mine.length
        self.open.append(Open(key, [mine, other]))

    def insert(self) -> None:
        if not self.open:
            return
        one = self.open[int(self.random.integers(len(self.open)))]
        known = one.leases[0].length
        if known > len(one.key.ids):
            return
        upto = int(self.random.integers(known, len(one.key.ids) + 1))
        pages = self.new_pages(one, -(-upto // self.page_size))
        mine, other = (
            cache.insert(lease, one.key, pages, upto) for cache, lease in zip(self.caches, one.leases, strict=True)
        )
        assert_same_lease(mine[0], other[0])
        assert mine[1] == other[1]
        self.seen["remapped"] += len(mine[1])
        one.leases = [mine[0], other[0]]

    def new_pages(self, one: Open, n: int) -> dict[str, Ints]:
        """The lease's pages, mostly, then new ones."""
        pages = {}
        for name in self.names:
            pages[name] = np.arange(self.next_page, self.next_page + n, dtype=np.int32)
            self.next_page += n
            if self.random.random() < 0.8:
                leased = one.leases[0].pages[name]
                pages[name][: len(leased)] = leased
        return pages

    def release(self) -> None:
        if self.open:
            one = self.open.pop(int(self.random.integers(len(self.open))))
            mine, other = (cache.release(lease) for cache, lease in zip(self.caches, one.leases, strict=True))
            assert listed(mine.pages) == listed(other.pages)
            self.seen["left by reset"] += len(mine.pages["full"])

    def evict(self, n: int | None = None) -> None:
        n = int(self.random.integers(0, 9)) if n is None else n
        mine, other = (cache.evict(self.names[-1], n) for cache in self.caches)
        assert listed(mine.pages) == listed(other.pages)
        self.seen["evicted"] += len(mine.pages["full"])

    def peek(self) -> None:
        keys = [self.key() for _ in range(3)]
        mine, other = (cache.peek(keys) for cache in self.caches)
        assert mine == other

    def reset(self) -> None:
        """The order of what it gives back says nothing."""
        mine, other = (sorted(zip(*listed(cache.reset().pages), strict=True)) for cache in self.caches)
        assert mine == other

    def compare_figures(self) -> None:
        mine, other = self.caches
        assert mine.stats() == other.stats()
        assert [mine.evictable(name) for name in self.names] == [other.evictable(name) for name in self.names]
        limit = int(self.random.integers(0, 20))
        mine_shown, other_shown = (cache.outline(limit, 3) for cache in self.caches)
        assert list(map(shown, mine_shown)) == list(map(shown, other_shown))
        self.seen["shown"] += len(mine_shown)
        events = mine.events()
        assert events == other.events()
        self.seen["events"] += len(events)


def shown(one: Prefix) -> tuple[Any, ...]:
    return one.parent, one.length, one.ids, listed(one.pages), one.namespace, one.hits, one.pins


def listed(pages: Mapping[str, Ints]) -> list[Any]:
    return [rows.tolist() for rows in pages.values()]


def assert_same_lease(mine: Lease, other: Lease) -> None:
    assert (mine.length, mine.pending) == (other.length, other.pending)
    assert list(mine.pages) == list(other.pages)
    assert listed(mine.pages) == listed(other.pages)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    "seeds", [range(60), *(pytest.param(range(at, at + 235), marks=pytest.mark.full) for at in range(60, 1000, 235))]
)
def test_same_decisions(seeds: Sequence[int]) -> None:
    seen: dict[str, int] = {}
    for seed in seeds:
        trace = Trace(seed)
        try:
            trace.run()
        except AssertionError as error:
            error.add_note(f"in the trace of seed {seed}")
            raise
        seen = {name: count + seen.get(name, 0) for name, count in trace.seen.items()}
    assert min(seen.values()) > 10 * len(seeds) / 60, "the traces do not visit everything"
