"""Legal caches: other policies, another structure, a tier. A check that fails one of them asks too much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import BaseModel

from srtkit.spec.capabilities import YES
from srtkit.spec.prefix_cache import (
    CacheCapabilities,
    CacheKey,
    CacheStats,
    Evicted,
    Lease,
    PrefixCache,
    PrefixCacheBuild,
    PrefixCacheDescriptor,
    Remap,
    Transfer,
)
from srtkit.spec.step_plan import Ints
from srtkit_conformance.mutant import variant
from srtkit_conformance.mutants.prefix_cache.block_cache import Block, BlockCache
from srtkit_conformance.mutants.prefix_cache.wrapping import BuildAround, Wrapped, another, around


class NeverCaches(Wrapped):
    """Every page stays the caller's."""

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        return lease, []


class SelectiveCache(Wrapped):
    """Takes a prompt only when it is offered at least three pages of it."""

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        if upto < 3 * self.page_size:
            upto = lease.length
        return self.inner.insert(lease, key, pages, upto)


class FifoCache(BlockCache):
    """What was stored first goes first, however often it was used."""

    def lease(self, blocks: list[Block], age: int | None = None) -> Lease:
        used = {block: block.used for block in blocks}
        lease = super().lease(blocks, age)
        for block in blocks:
            block.used = used[block] or block.used
        return lease


class GenerousCache(Wrapped):
    """Evicts twice as much as it is asked for, so as to be asked less often."""

    def evict(self, component: str, n: int) -> Evicted:
        return self.inner.evict(component, 2 * n)


class WriteBackCache(Wrapped):
    """Copies every page to the host before it gives it back."""

    def __init__(self, inner: PrefixCache, build: PrefixCacheBuild) -> None:
        super().__init__(inner, build)
        self.new: list[Transfer] = []
        self.flying: dict[int, Transfer] = {}
        self.serial = 0

    def evict(self, component: str, n: int) -> Evicted:
        leaving = self.inner.evict(component, n).pages
        for name, pages in leaving.items():
            if len(pages):
                self.serial += 1
                there = np.arange(len(pages), dtype=np.int32)
                self.new.append(Transfer(self.serial, name, "out", "host", pages, there))
        self.flying |= {one.id: one for one in self.new}
        return Evicted({}, len(leaving[component]))

    def transfers(self) -> list[Transfer]:
        new, self.new = self.new, []
        return new

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        return Evicted(_by_component([self.flying.pop(one) for one in (*done, *failed)]))

    def stats(self) -> CacheStats:
        stats = self.inner.stats()
        waiting = {name: len(pages) for name, pages in _by_component(list(self.flying.values())).items()}
        cached = {name: n + waiting.get(name, 0) for name, n in stats.cached_pages.items()}
        return replace(stats, cached_pages=cached)


def _by_component(transfers: Sequence[Transfer]) -> dict[str, Ints]:
    pages: dict[str, list[int]] = {}
    for one in transfers:
        pages.setdefault(one.component, []).extend(one.here.tolist())
    return {name: np.array(listed, np.int32) for name, listed in pages.items()}


def with_tiers(descriptor: PrefixCacheDescriptor, wrapper: type[WriteBackCache]) -> PrefixCacheDescriptor:
    """The plugin's cache with a tier below it, declared."""

    def capabilities(options: BaseModel) -> CacheCapabilities:
        return replace(descriptor.capabilities(options), tiers=YES)

    return replace(descriptor, capabilities=capabilities, build=BuildAround(descriptor.build, wrapper))


def with_events(descriptor: PrefixCacheDescriptor) -> PrefixCacheDescriptor:
    """The plugin with its option `events` on."""
    options: Any = type("WithEvents", (descriptor.options,), {"__annotations__": {"events": bool}, "events": True})
    return replace(descriptor, options=options)


never_caches = variant("prefix_cache.never_caches", of="radix", sentence="Keeps no page at all.")(around(NeverCaches))
selective = variant("prefix_cache.selective", of="radix", sentence="Keeps long prompts only.")(around(SelectiveCache))
block = variant("prefix_cache.blocks", of="radix", sentence="A dictionary of blocks.")(another(BlockCache))
fifo = variant("prefix_cache.fifo", of="radix", sentence="First in, first out.")(another(FifoCache))
generous = variant("prefix_cache.generous", of="radix", sentence="Evicts more than asked.")(around(GenerousCache))
events = variant("prefix_cache.with_events", of="radix", sentence="Tells what changes.")(with_events)


@variant("prefix_cache.write_back", of="radix", sentence="Gives pages back after a copy to the host.")
def write_back(descriptor: PrefixCacheDescriptor) -> PrefixCacheDescriptor:
    return with_tiers(descriptor, WriteBackCache)
