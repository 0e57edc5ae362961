"""A prefix cache for components of every reach, of another kind than the plugins': one dictionary entry per page.

Legal as it stands; its methods are small so that a mutant can replace one. Slow, and for the suite only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from srtkit.spec.kv import Component
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

Prefix = tuple[bytes, tuple[object, ...]]
"""A namespace and the identities of all tokens so far."""


@dataclass(eq=False)
class Page:
    """A page or a snapshot of one component, for one prefix. `pins`: leases that name it."""

    name: str
    prefix: Prefix
    id: int
    pins: int = 0
    used: int = 0


@dataclass(eq=False)
class Held:
    """A lease's token: what it pins, and how often the cache had been reset."""

    pages: list[Page]
    age: int


class MixedCache(PrefixCache):
    """Of each component the page used longest ago goes first, of those of reach all the ends of prefixes only."""

    def __init__(self, build: PrefixCacheBuild) -> None:
        self.page_size = build.page_size
        self.components: dict[str, Component] = {one.name: one for one in build.components}
        self.all = [one.name for one in build.components if one.reach == "all"]
        self.pages: dict[tuple[str, Prefix], Page] = {}
        self.left: list[Page] = []  # what leases from before a reset hold
        self.age = 0
        self.ticks = count(1)

    def match(self, key: CacheKey) -> Lease:
        return self.lend(key, self.find(key), matched=True)

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        return [self.find(key) * self.page_size for key in keys]

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        held = _held(lease)
        if held.age != self.age:
            paged = [name for name, one in self.components.items() if one.kind == "paged"]
            return lease, [one for name in paged for one in differing(name, lease, pages[name])]
        remaps = []
        for name, component in self.components.items():
            n = upto // self.page_size
            places = range(n - 1, n) if component.kind == "slot" else range(n)
            for index, (place, mine) in enumerate(zip(places, pages[name].tolist(), strict=False)):
                theirs = self.keep(name, prefix_of(key, (place + 1) * self.page_size), mine)
                if mine and theirs != mine:
                    remaps.append(Remap(name, index, mine, theirs))
        longer = self.lend(key, upto // self.page_size, matched=False)
        unpin(held)
        return longer, remaps

    def release(self, lease: Lease) -> Evicted:
        unpin(_held(lease))
        free = [page for page in self.left if not page.pins]
        self.left = [page for page in self.left if page.pins]
        return given(free)

    def evictable(self, component: str) -> int:
        return sum(1 for page in of(self.pages.values(), component) if not page.pins)

    def evict(self, component: str, n: int) -> Evicted:
        freed: list[Page] = []
        for _ in range(n):
            free = [page for page in of(self.pages.values(), component) if self.may_go(page)]
            if not free:
                break
            freed += self.drop(min(free, key=lambda page: page.used))
        return given(freed)

    def transfers(self) -> list[Transfer]:
        return []

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        return Evicted({})

    def events(self) -> list[CacheEvent]:
        return []

    def reset(self) -> Evicted:
        free = [page for page in self.pages.values() if not page.pins]
        self.left += [page for page in self.pages.values() if page.pins]
        self.pages = {}
        self.age += 1
        return given(free)

    def stats(self) -> CacheStats:
        all_pages = [*self.pages.values(), *self.left]
        cached = {name: sum(page.name == name for page in all_pages) for name in self.components}
        pinned = {name: sum(page.name == name and page.pins > 0 for page in all_pages) for name in self.components}
        return CacheStats(cached, pinned, len(self.pages))

    def close(self) -> None:
        self.pages = {}

    # --- what a mutant may replace ---

    def needed(self, name: str, pages: int) -> Iterable[int]:
        """The page indices that going on from a prefix of so many pages needs."""
        component = self.components[name]
        if component.kind == "slot":
            return range(pages - 1, pages)
        return range(component.first_page(pages * self.page_size, self.page_size), pages)

    def find(self, key: CacheKey) -> int:
        """Pages of the longest prefix that every component can serve."""
        longest = max(0, min(len(key.ids), key.limit)) // self.page_size
        for pages in range(longest, 0, -1):
            if all(self.at(name, key, i) for name in self.components for i in self.needed(name, pages)):
                return pages
        return 0

    def lend(self, key: CacheKey, pages: int, *, matched: bool) -> Lease:
        """Pin a prefix."""
        held: list[Page] = []
        by_name = {}
        for name, component in self.components.items():
            row = np.zeros(pages if component.kind == "paged" else min(pages, int(matched)), np.int32)
            lent = component.kind == "paged" or (matched and pages > 0)
            for index in self.needed(name, pages) if lent else ():
                if (page := self.at(name, key, index)) is not None:
                    row[index if component.kind == "paged" else 0] = page.id
                    held.append(page)
            by_name[name] = row
        for page in held:
            page.pins += 1
            page.used = next(self.ticks)
        return Lease(pages * self.page_size, by_name, Held(held, self.age))

    def keep(self, name: str, prefix: Prefix, mine: int) -> int:
        """Take a page if there is none; the one that serves."""
        page = self.pages.get((name, prefix))
        if page is None and mine:
            page = self.pages[name, prefix] = Page(name, prefix, mine, used=next(self.ticks))
        return page.id if page is not None else mine

    def may_go(self, page: Page) -> bool:
        """Whether it can be evicted now: unpinned, and no longer prefix stands on it."""
        return not page.pins and not (page.name in self.all and standing_on(self.pages.values(), page))

    def drop(self, page: Page) -> list[Page]:
        """Take it out, with what stands beside or on it where it is of reach all."""
        gone = [page]
        if page.name in self.all:
            gone = [other for other in self.pages.values() if other.prefix == page.prefix]
        for one in gone:
            del self.pages[one.name, one.prefix]
        return gone

    # --- bookkeeping ---

    def at(self, name: str, key: CacheKey, index: int) -> Page | None:
        """The page of a component at an index of the key."""
        return self.pages.get((name, prefix_of(key, (index + 1) * self.page_size)))


def of(pages: Iterable[Page], name: str) -> list[Page]:
    """Those of a component."""
    return [page for page in pages if page.name == name]


def standing_on(pages: Iterable[Page], page: Page) -> bool:
    """Whether its component has a page of a longer prefix."""
    space, tokens = page.prefix
    longer = (one.prefix for one in of(pages, page.name) if len(one.prefix[1]) > len(tokens))
    return any(other[0] == space and other[1][: len(tokens)] == tokens for other in longer)


def unpin(held: Held) -> None:
    """One lease less."""
    for page in held.pages:
        page.pins -= 1


def differing(name: str, lease: Lease, mine: Ints) -> list[Remap]:
    """Pages of the caller's in place of those it was lent, under a lease from before a reset."""
    pairs = enumerate(zip(mine.tolist(), lease.pages[name].tolist(), strict=False))
    return [Remap(name, i, own, lent) for i, (own, lent) in pairs if own and lent and own != lent]


def prefix_of(key: CacheKey, length: int) -> Prefix:
    """What the first `length` tokens are."""
    identities: list[object] = key.ids[:length].tolist()
    for start, stop, digest in key.spans:
        end = min(stop, length)
        identities[start:end] = [(digest, stop - start, offset) for offset in range(max(0, end - start))]
    return key.namespace, tuple(identities)


def given(pages: Iterable[Page]) -> Evicted:
    """Pages to give back."""
    by_name: dict[str, list[int]] = {}
    for page in pages:
        by_name.setdefault(page.name, []).append(page.id)
    return Evicted({name: np.array(ids, np.int32) for name, ids in by_name.items()})


def _held(lease: Lease) -> Held:
    assert isinstance(lease.token, Held)
    return lease.token
