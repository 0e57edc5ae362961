"""Caches that mistake one prefix for another."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from srtkit.spec.prefix_cache import CacheKey, Evicted, Lease, PrefixCache, PrefixCacheBuild, Remap
from srtkit.spec.step_plan import Ints
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.prefix_cache.block_cache import Block, BlockCache, Identity, Path
from srtkit_conformance.mutants.prefix_cache.wrapping import Wrapped, another, around


class Rekeyed(Wrapped):
    """Sees another key, everywhere."""

    def seen(self, key: CacheKey) -> CacheKey:
        return key

    def match(self, key: CacheKey) -> Lease:
        return self.inner.match(self.seen(key))

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        return self.inner.peek([self.seen(key) for key in keys])

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        return self.inner.insert(lease, self.seen(key), pages, upto)


class NoNamespace(Rekeyed):
    def seen(self, key: CacheKey) -> CacheKey:
        return replace(key, namespace=b"")


class NamespaceAsText(Rekeyed):
    def seen(self, key: CacheKey) -> CacheKey:
        return replace(key, namespace=key.namespace.rstrip(b"\0"))


class NoSpans(Rekeyed):
    def seen(self, key: CacheKey) -> CacheKey:
        return replace(key, spans=())


class SpansWithoutLength(Rekeyed):
    """As if every position of a span had a digest of its own that only counts from the span's start."""

    def seen(self, key: CacheKey) -> CacheKey:
        singles = ((start, at, one) for start, stop, one in key.spans for at in range(start, stop))
        return replace(key, spans=tuple((at, at + 1, b"%s:%d" % (one, at - start)) for start, at, one in singles))


class PriorityInKey(Rekeyed):
    def seen(self, key: CacheKey) -> CacheKey:
        return replace(key, namespace=key.namespace + b":%d" % key.priority if key.priority else key.namespace)


class FirstTokenOfPage(Rekeyed):
    def seen(self, key: CacheKey) -> CacheKey:
        return replace(key, ids=key.ids[np.arange(len(key.ids)) // self.page_size * self.page_size])


class ByCrc(BlockCache):
    """Trusts the CRC-32 of a page's tokens."""

    def identity(self, key: CacheKey, index: int, parent: Block | None) -> Identity:
        above, ids, spans = super().identity(key, index, parent)
        return above, (zlib.crc32(np.array(ids, np.int32).tobytes()),), spans


class ByPageAlone(BlockCache):
    """Finds a page by its own tokens, whatever stands before it."""

    def identity(self, key: CacheKey, index: int, parent: Block | None) -> Identity:
        return super().identity(key, index, None)


class MemoOfMatches(BlockCache):
    """Remembers the blocks of every key it has matched, and forgets too few of them."""

    def __init__(self, build: PrefixCacheBuild) -> None:
        super().__init__(build)
        self.memo: dict[object, list[Block]] = {}

    def find(self, key: CacheKey, usable: int) -> list[Block]:
        name = (key.ids.tobytes(), key.namespace, key.spans, usable)
        memo = self.memo.get(name, [])
        if memo and all(block.age == self.age for block in memo) and memo[0].key in self.blocks:
            return memo
        self.memo[name] = super().find(key, usable)
        return list(self.memo[name])

    def grow(self, path: Path, key: CacheKey, mine: Sequence[tuple[int, ...]]) -> list[Block]:
        self.memo.clear()
        grown = super().grow(path, key, mine)
        self.memo.clear()
        return grown


class KeepsViews(BlockCache):
    """Keeps the caller's array of page ids as its own."""

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        longer, remaps = super().insert(lease, key, pages, upto)
        if not remaps:
            n = longer.length // self.page_size
            longer = replace(longer, pages={name: pages[name][:n] for name in self.names})
        return longer, remaps


class SharedBlocks(BlockCache):
    """Keeps its blocks where all caches of the process do."""

    everywhere: dict[object, Block] = {}  # noqa: RUF012 - the fault itself

    def __init__(self, build: PrefixCacheBuild) -> None:
        super().__init__(build)
        self.blocks = self.everywhere

    def reset(self) -> Evicted:
        evicted = super().reset()
        self.everywhere.clear()
        self.blocks = self.everywhere
        return evicted


class LosesSecondComponent(Wrapped):
    """Gives back the pages of the component it was asked for, and forgets those that went with them."""

    def evict(self, component: str, n: int) -> Evicted:
        return Evicted({component: self.inner.evict(component, n).pages[component]})


class RemapsFirstComponent(Wrapped):
    def __init__(self, inner: PrefixCache, build: PrefixCacheBuild) -> None:
        super().__init__(inner, build)
        self.first = build.components[0].name

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        lease, remaps = self.inner.insert(lease, key, pages, upto)
        return lease, [remap for remap in remaps if remap.component == self.first]


no_namespace = mutant(
    "prefix_cache.no_namespace",
    of="radix",
    sentence="Ignores the namespace.",
    killed_by=("prefix_cache.namespaces", "prefix_cache.traffic"),
)(around(NoNamespace))

namespace_as_text = mutant(
    "prefix_cache.namespace_as_text",
    of="radix",
    sentence="Drops zero bytes at the end of a namespace.",
    killed_by=("prefix_cache.namespaces", "prefix_cache.traffic"),
)(around(NamespaceAsText))

no_spans = mutant(
    "prefix_cache.no_spans",
    of="radix",
    sentence="Compares the place-holder ids under an image.",
    killed_by=("prefix_cache.spans", "prefix_cache.traffic"),
)(around(NoSpans))

spans_without_length = mutant(
    "prefix_cache.spans_without_length",
    of="radix",
    sentence="Takes two spans for one when they begin alike.",
    killed_by=("prefix_cache.spans", "prefix_cache.traffic"),
    note="a span is there, and only half of its identity",
)(around(SpansWithoutLength))

priority_in_key = mutant(
    "prefix_cache.priority_in_key",
    of="radix",
    sentence="Shares between requests of one priority only.",
    killed_by=("prefix_cache.priority",),
)(around(PriorityInKey))

first_token_of_page = mutant(
    "prefix_cache.first_token_of_page",
    of="radix",
    sentence="Compares the first token of each page.",
    killed_by=("prefix_cache.sound",),
)(around(FirstTokenOfPage))

by_crc = mutant(
    "prefix_cache.by_crc",
    of="radix",
    sentence="Takes pages of equal CRC-32 for equal.",
    killed_by=("prefix_cache.collisions",),
)(another(ByCrc))

by_page_alone = mutant(
    "prefix_cache.by_page_alone",
    of="radix",
    sentence="Finds a page by its own tokens, without those before it.",
    killed_by=("prefix_cache.sound",),
)(another(ByPageAlone))

memo_of_matches = mutant(
    "prefix_cache.memo_of_matches",
    of="radix",
    sentence="Answers from a memo that evictions clear in part.",
    killed_by=("prefix_cache.reuse",),
)(another(MemoOfMatches))

keeps_views = mutant(
    "prefix_cache.keeps_views",
    of="radix",
    sentence="Keeps the scheduler's array of page ids.",
    killed_by=("prefix_cache.views",),
)(another(KeepsViews))

shared_blocks = mutant(
    "prefix_cache.shared_blocks",
    of="radix",
    sentence="Keeps its state at class level.",
    killed_by=("prefix_cache.independent",),
)(another(SharedBlocks))

loses_second_component = mutant(
    "prefix_cache.loses_second_component",
    of="radix",
    sentence="Forgets the pages that other components lose in an eviction.",
    killed_by=("prefix_cache.components", "prefix_cache.traffic"),
)(around(LosesSecondComponent))

remaps_first_component = mutant(
    "prefix_cache.remaps_first_component",
    of="radix",
    sentence="Hands duplicates back for the first component only.",
    killed_by=("prefix_cache.components", "prefix_cache.traffic"),
    note="of insert what the other is of evict",
)(around(RemapsFirstComponent))
