"""Room: free pages of every component, and those that the prefix cache could give back. Knows no sequences."""

from collections.abc import Sequence

import numpy as np

from srtkit.scheduler.component import PagedComponent
from srtkit.spec.prefix_cache import Evicted, PrefixCache
from srtkit.spec.step_plan import EMPTY, Ints


class Room:
    """Counts of pages are int32 [components], in the order of `parts`."""

    def __init__(self, parts: Sequence[PagedComponent], cache: PrefixCache) -> None:
        self._parts, self._cache = parts, cache

    def available(self) -> Ints:
        """Pages that are free or could be made so by eviction; while copies are to free some, no more are evicted."""
        pools = [(part.pool, 0 if part.pool.moving else self._cache.evictable(part.name)) for part in self._parts]
        return np.array([pool.free + evictable for pool, evictable in pools], np.int32)

    @property
    def moving(self) -> bool:
        """Whether pages come free when copies are done."""
        return any(part.pool.moving for part in self._parts)

    def coming(self) -> Ints:
        """Pages that come free when the steps in flight are committed, and the copies under way are done."""
        return np.array([part.pool.retiring + part.pool.moving for part in self._parts], np.int32)

    def make(self, part: PagedComponent, n: int) -> bool:
        """Evict until `n` pages of a component are free; whether they are."""
        while (missing := n - part.pool.free - part.pool.moving) > 0 and self._cache.evictable(part.name):
            evicted = self._cache.evict(part.name, missing)
            part.pool.moving += evicted.pending
            self.take_evicted(evicted)
        return part.pool.free >= n

    def most(self, n: int) -> int:
        """Of `n` pages of every component, how many can be had now; 0 if all of them can after a while."""
        made = [self.make(part, n) for part in self._parts]
        return 0 if self.moving and not all(made) else min(n, *(part.pool.free for part in self._parts))

    def flush(self) -> int:
        """Empty the cache as far as it is not pinned; how many pages became free."""
        return self.take_evicted(self._cache.reset())

    def figures(self, limit: int = 0, tokens: int = 0) -> dict[str, object]:
        """Pages of every component by state, what the cache says of itself, and its `outline`."""
        pages = {part.name: part.pool.counts() for part in self._parts}
        return {"pages": pages, "cache": self._cache.stats(), "prefixes": self._cache.outline(limit, tokens)}

    def take_evicted(self, evicted: Evicted) -> int:
        """Pages the cache gave back become free; how many."""
        for part in self._parts:
            part.pool.from_cache(evicted.pages.get(part.name, EMPTY))
        return sum(len(pages) for pages in evicted.pages.values())
