"""Caches that lose pages, give them back twice, or promise too many."""

from __future__ import annotations

from collections.abc import Mapping

from srtkit.spec.prefix_cache import CacheKey, Evicted, Lease, PrefixCache, PrefixCacheBuild, Remap
from srtkit.spec.step_plan import Ints
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.prefix_cache.block_cache import Block, BlockCache
from srtkit_conformance.mutants.prefix_cache.wrapping import Wrapped, another, around


class EvictsOneLess(Wrapped):
    def evict(self, component: str, n: int) -> Evicted:
        return self.inner.evict(component, n - 1)


class KeepsOnePage(Wrapped):
    """Forgets a page that it freed."""

    def evict(self, component: str, n: int) -> Evicted:
        evicted = self.inner.evict(component, n)
        return Evicted({name: pages[1:] if len(pages) > 3 else pages for name, pages in evicted.pages.items()})


class FreesTwice(Wrapped):
    """The first page of an eviction comes again with the next one."""

    def __init__(self, inner: PrefixCache, build: PrefixCacheBuild) -> None:
        super().__init__(inner, build)
        self.last: Mapping[str, Ints] = {}

    def evict(self, component: str, n: int) -> Evicted:
        evicted = self.inner.evict(component, n)
        if not len(evicted.pages[component]):
            evicted = Evicted({name: pages[:1] for name, pages in self.last.items()})
        self.last = evicted.pages
        return evicted


class PromisesLate(Wrapped):
    """The figure is that of the last insert or release."""

    def __init__(self, inner: PrefixCache, build: PrefixCacheBuild) -> None:
        super().__init__(inner, build)
        self.known: dict[str, int] = {}

    def evictable(self, component: str) -> int:
        return self.known.setdefault(component, self.inner.evictable(component))

    def release(self, lease: Lease) -> Evicted:
        self.known.clear()
        return self.inner.release(lease)

    def evict(self, component: str, n: int) -> Evicted:
        self.known.clear()
        return self.inner.evict(component, n)

    def reset(self) -> Evicted:
        self.known.clear()
        return self.inner.reset()


class BeginningsFirst(BlockCache):
    """Evicts by age alone, so a prefix may lose its beginning first."""

    def may_go(self, block: Block) -> bool:
        return not block.refs


class SilentDuplicates(Wrapped):
    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        return self.inner.insert(lease, key, pages, upto)[0], []


class TellsDuplicatesOnce(BlockCache):
    """Says nothing of the pages that the old lease covered already."""

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        covered = lease.length // self.page_size
        longer, remaps = super().insert(lease, key, pages, upto)
        return longer, [remap for remap in remaps if remap.index >= covered]


class ServesMine(BlockCache):
    """The newer page takes the place of the older one, which nobody owns any more."""

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        for index, block in enumerate(self.find(key, upto)):
            block.pages = tuple(int(pages[name][index]) for name in self.names)
        return super().insert(lease, key, pages, upto)


evicts_one_less = mutant(
    "prefix_cache.evicts_one_less",
    of="radix",
    sentence="Frees one page fewer than asked.",
    killed_by=("prefix_cache.evict",),
)(around(EvictsOneLess))

keeps_one_page = mutant(
    "prefix_cache.keeps_one_page",
    of="radix",
    sentence="Frees pages without giving all of them back.",
    killed_by=("prefix_cache.evict",),
)(around(KeepsOnePage))

frees_twice = mutant(
    "prefix_cache.frees_twice",
    of="radix",
    sentence="Gives a page back again when there is nothing left to evict.",
    killed_by=("prefix_cache.evict_once",),
)(around(FreesTwice))

promises_late = mutant(
    "prefix_cache.promises_late",
    of="radix",
    sentence="A match does not lower the figure of evictable pages.",
    killed_by=("prefix_cache.evictable",),
)(around(PromisesLate))

beginnings_first = mutant(
    "prefix_cache.beginnings_first",
    of="radix",
    sentence="Evicts a page before those that follow it.",
    killed_by=("prefix_cache.reachable",),
)(another(BeginningsFirst))

silent_duplicates = mutant(
    "prefix_cache.silent_duplicates",
    of="radix",
    sentence="Says nothing of pages that it had already.",
    killed_by=("prefix_cache.duplicates",),
)(around(SilentDuplicates))

tells_duplicates_once = mutant(
    "prefix_cache.tells_duplicates_once",
    of="radix",
    sentence="Names a duplicate in the first insert only.",
    killed_by=("prefix_cache.duplicates",),
)(another(TellsDuplicatesOnce))

serves_mine = mutant(
    "prefix_cache.serves_mine",
    of="radix",
    sentence="Replaces the older page by the newer one under those who read it.",
    killed_by=("prefix_cache.duplicates",),
)(another(ServesMine))
