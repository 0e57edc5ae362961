"""The scheduler's side of slower tiers: pages for what comes back, copies that are under way, and what came of them.

Knows transfers by id and pages by count; what lies where is the cache's business.
"""

from collections.abc import Sequence

from srtkit.scheduler.component import PagedComponent
from srtkit.spec.prefix_cache import Evicted, Lease, PrefixCache
from srtkit.spec.step_plan import EMPTY, Ints
from srtkit.spec.tiers import pack_transfers


class Tiers:
    """Transfers of one cache. `under_way`: ids of those without an outcome yet."""

    def __init__(self, cache: PrefixCache, parts: Sequence[PagedComponent]) -> None:
        self.under_way: set[int] = set()
        self._loads: set[int] = set()  # of these, those whose pages steps read already
        self._cache, self._parts = cache, parts

    def load(self, lease: Lease, n: int) -> Lease:
        """The lease with `n` of its pending pages more, for which free pages are there."""
        pages = {part.name: part.pool.take(n) for part in self._parts}
        for part in self._parts:
            part.pool.to_cache(n)
        return self._cache.load(lease, pages)

    def take(self) -> tuple[Ints, bool]:
        """Copies that start with the next plan, packed, and whether its step may read what one of them loads."""
        transfers = self._cache.transfers()
        loads = {one.id for one in transfers if (one.direction, one.tier) == ("in", "host")}
        self.under_way.update(one.id for one in transfers)
        self._loads |= loads
        return pack_transfers(transfers, [part.name for part in self._parts]), bool(loads)

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> tuple[Evicted, bool]:
        """Pages that are free by these outcomes, and whether a load failed: what was computed since is wrong."""
        evicted = self._cache.complete(done, failed)
        for part in self._parts:
            part.pool.moving = max(0, part.pool.moving - len(evicted.pages.get(part.name, EMPTY)))
        spoilt = not self._loads.isdisjoint(failed)
        for ids in (self.under_way, self._loads):
            ids.difference_update(done, failed)
        return evicted, spoilt
