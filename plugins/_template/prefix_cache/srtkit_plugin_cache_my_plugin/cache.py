"""The cache. It never shares: every prefix is unknown, and every page stays with the sequence that wrote it.

A policy begins with `insert` taking whole pages and `match` finding them again. Knows no tensor and no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

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
from srtkit.spec.step_plan import EMPTY, Ints


@final
class MyPluginCache(PrefixCache):
    """Holds no page; remembers which leases are open, so that one released twice is found."""

    def __init__(self, build: PrefixCacheBuild) -> None:
        self._no_pages = {component.name: EMPTY for component in build.components}
        self._none = dict.fromkeys(self._no_pages, 0)
        self._open: set[object] = set()

    def match(self, key: CacheKey) -> Lease:
        """A lease of length 0."""
        token = object()
        self._open.add(token)
        return Lease(length=0, pages=self._no_pages, token=token)

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        """0 for every key."""
        return [0] * len(keys)

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        """Takes nothing: the new lease has length 0, so every page stays the caller's."""
        self.release(lease)
        return self.match(key), []

    def release(self, lease: Lease) -> Evicted:
        """Ends the lease. It pinned nothing."""
        assert lease.token in self._open, "this lease is not of this cache, or has ended"
        self._open.remove(lease.token)
        return Evicted(self._no_pages)

    def evictable(self, component: str) -> int:
        """0: no page is held."""
        return self._none[component]

    def evict(self, component: str, n: int) -> Evicted:
        """Nothing to free."""
        return Evicted(self._no_pages)

    def transfers(self) -> list[Transfer]:
        """None: there are no tiers."""
        return []

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        """No transfer was asked for, so none can have ended."""
        assert not done and not failed, "a transfer that was never asked for has ended"
        return Evicted(self._no_pages)

    def events(self) -> list[CacheEvent]:
        """None: nothing is ever stored."""
        return []

    def reset(self) -> Evicted:
        """Nothing to forget; open leases stay open."""
        return Evicted(self._no_pages)

    def stats(self) -> CacheStats:
        """All zero."""
        return CacheStats(cached_pages=self._none, pinned_pages=self._none, entries=0)

    def close(self) -> None:
        """Nothing to release."""
