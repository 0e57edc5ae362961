"""Caches whose leases are too long, too short, or do not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from srtkit.spec.prefix_cache import CacheKey, Evicted, Lease, PrefixCache, PrefixCacheBuild, Remap
from srtkit.spec.step_plan import Ints
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.prefix_cache.block_cache import Block, BlockCache, Path, path_of
from srtkit_conformance.mutants.prefix_cache.wrapping import Wrapped, another, around


class NoLimit(BlockCache):
    def match(self, key: CacheKey) -> Lease:
        return self.lease(self.find(key, len(key.ids)))

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        return [len(self.find(key, len(key.ids))) * self.page_size for key in keys]


class LimitRoundedUp(BlockCache):
    def match(self, key: CacheKey) -> Lease:
        return self.lease(self.find(key, -(-min(len(key.ids), key.limit) // self.page_size) * self.page_size))

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        leases = [self.match(key) for key in keys]
        for lease in leases:
            self.release(lease)
        return [lease.length for lease in leases]


class PadsLastPage(Wrapped):
    """Takes a partial page as if the rest of it were zeros."""

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        missing = -upto % self.page_size
        padded = replace(key, ids=np.pad(key.ids[:upto], (0, missing)))
        return self.inner.insert(lease, padded, pages, upto + missing)


class WholeKey(Wrapped):
    """Takes all of the key's pages, committed or not."""

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        return self.inner.insert(lease, key, pages, len(key.ids))


class NoPins(BlockCache):
    def evictable(self, component: str) -> int:
        return len(self.blocks)

    def may_go(self, block: Block) -> bool:
        return not block.children


class PinsLastPage(BlockCache):
    """A lease pins the page it ends with, and nothing keeps those before it but the order of eviction."""

    def lease(self, blocks: list[Block], age: int | None = None) -> Lease:
        lease = super().lease(blocks, age)
        for block in blocks[:-1]:
            block.refs -= 1
        return lease

    def unpin(self, path: Path) -> list[Block]:
        for block in path.blocks[:-1]:
            block.refs += 1
        return super().unpin(path)


class OnePinForAll(BlockCache):
    """Pins are flags, not counts: the first release takes the pin of every lease."""

    def lease(self, blocks: list[Block], age: int | None = None) -> Lease:
        lease = super().lease(blocks, age)
        for block in blocks:
            block.refs = 1
        return lease

    def unpin(self, path: Path) -> list[Block]:
        for block in path.blocks:
            block.refs = max(1, block.refs)
        return super().unpin(path)


class NeverUnpins(Wrapped):
    def release(self, lease: Lease) -> Evicted:
        return Evicted({name: pages[:0] for name, pages in lease.pages.items()})


class InsertKeepsOldPin(BlockCache):
    """The lease that insert replaces stays pinned."""

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        for block in path_of(lease).blocks:
            block.refs += 1
        return super().insert(lease, key, pages, upto)


class PeekPins(Wrapped):
    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        return [self.inner.match(key).length for key in keys]


class PeekTouches(Wrapped):
    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        leases = [self.inner.match(key) for key in keys]
        for lease in leases:
            self.inner.release(lease)
        return [lease.length for lease in leases]


class PeekMemo(Wrapped):
    """Remembers lengths until the next insert, whatever is evicted."""

    def __init__(self, inner: PrefixCache, build: PrefixCacheBuild) -> None:
        super().__init__(inner, build)
        self.memo: dict[object, int] = {}

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        return [self._one(key) for key in keys]

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        self.memo.clear()
        return self.inner.insert(lease, key, pages, upto)

    def reset(self) -> Evicted:
        self.memo.clear()
        return self.inner.reset()

    def _one(self, key: CacheKey) -> int:
        name = (key.ids.tobytes(), key.namespace, key.spans, key.limit)
        if name not in self.memo:
            [self.memo[name]] = self.inner.peek([key])
        return self.memo[name]


no_limit = mutant(
    "prefix_cache.no_limit",
    of="radix",
    sentence="Matches beyond the key's limit.",
    killed_by=("prefix_cache.limit", "prefix_cache.traffic"),
)(another(NoLimit))

limit_rounded_up = mutant(
    "prefix_cache.limit_rounded_up",
    of="radix",
    sentence="Rounds the limit up to a whole page.",
    killed_by=("prefix_cache.limit",),
)(another(LimitRoundedUp))

pads_last_page = mutant(
    "prefix_cache.pads_last_page",
    of="radix",
    sentence="Takes a partial page for one that ends in zeros.",
    killed_by=("prefix_cache.whole_pages", "prefix_cache.traffic"),
)(around(PadsLastPage))

whole_key = mutant(
    "prefix_cache.whole_key",
    of="radix",
    sentence="Takes pages that are not computed yet.",
    killed_by=("prefix_cache.committed", "prefix_cache.traffic"),
)(around(WholeKey))

no_pins = mutant(
    "prefix_cache.no_pins",
    of="radix",
    sentence="Evicts what is pinned.",
    killed_by=("prefix_cache.pins", "prefix_cache.traffic"),
)(another(NoPins))

pins_last_page = mutant(
    "prefix_cache.pins_last_page",
    of="radix",
    sentence="Counts all but the last page of a lease as evictable.",
    killed_by=("prefix_cache.evictable",),
)(another(PinsLastPage))

one_pin_for_all = mutant(
    "prefix_cache.one_pin_for_all",
    of="radix",
    sentence="The first release of two takes the pin of both.",
    killed_by=("prefix_cache.pins",),
)(another(OnePinForAll))

never_unpins = mutant(
    "prefix_cache.never_unpins",
    of="radix",
    sentence="release does nothing.",
    killed_by=("prefix_cache.release",),
)(around(NeverUnpins))

insert_keeps_old_pin = mutant(
    "prefix_cache.insert_keeps_old_pin",
    of="radix",
    sentence="Never unpins a lease that insert replaced.",
    killed_by=("prefix_cache.release",),
)(another(InsertKeepsOldPin))

peek_pins = mutant(
    "prefix_cache.peek_pins",
    of="radix",
    sentence="peek leaves a pin behind.",
    killed_by=("prefix_cache.peek", "prefix_cache.traffic"),
)(around(PeekPins))

peek_touches = mutant(
    "prefix_cache.peek_touches",
    of="radix",
    sentence="peek makes what it sees young again.",
    killed_by=("prefix_cache.peek_order",),
)(around(PeekTouches))

peek_memo = mutant(
    "prefix_cache.peek_memo",
    of="radix",
    sentence="peek remembers lengths through evictions.",
    killed_by=("prefix_cache.peek",),
)(around(PeekMemo))
