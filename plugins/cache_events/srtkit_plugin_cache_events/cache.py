"""The cache around another one: every call goes on as it is, and what the other one tells is published.

Knows when events may have come; what becomes of them is publisher.py's.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace

from srtkit.spec.errors import Unsupported
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
from srtkit_plugin_cache_events import EventsOptions
from srtkit_plugin_cache_events.publisher import Publisher

PART = "prefix_cache:events"


class EventsCache(PrefixCache):
    """Leases are the inner cache's own."""

    def __init__(self, build: PrefixCacheBuild, options: EventsOptions) -> None:
        """Raises `ConfigError` for an endpoint that cannot be bound, `Unsupported` for an inner cache with tiers."""
        inner = (build.needs or {}).get("inner")
        assert isinstance(inner, PrefixCache), "core hands in what `needs` names"
        if inner.stats().tiers:
            cause = f"prefix_cache:{options.inner['use']} has tiers, whose copies do not go through it"
            remedy = f'use = "{options.inner["use"]}" with inner = {{ use = "events" }}: what the device has is told'
            raise Unsupported(PART, cause, remedy)
        self._inner = inner
        self._publisher = Publisher(options, build.page_size)
        # Also for a cache that is dropped without being closed: a thread and two ports would stay.
        self._stop = weakref.finalize(self, self._publisher.close)

    def match(self, key: CacheKey) -> Lease:
        """As the inner cache."""
        return self._inner.match(key)

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        """As the inner cache."""
        return self._inner.peek(keys)

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        """As the inner cache; what is new is told."""
        result = self._inner.insert(lease, key, pages, upto)
        self._tell()
        return result

    def release(self, lease: Lease) -> Evicted:
        """As the inner cache; it may drop what nobody can use any more."""
        return self._told(self._inner.release(lease))

    def evictable(self, component: str) -> int:
        """As the inner cache."""
        return self._inner.evictable(component)

    def evict(self, component: str, n: int) -> Evicted:
        """As the inner cache; what goes is told."""
        return self._told(self._inner.evict(component, n))

    def transfers(self) -> list[Transfer]:
        """As the inner cache: none, it has no tiers."""
        return self._inner.transfers()

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        """As the inner cache."""
        return self._told(self._inner.complete(done, failed))

    def events(self) -> list[CacheEvent]:
        """None: they are published."""
        return []

    def reset(self) -> Evicted:
        """As the inner cache; "cleared" is told."""
        return self._told(self._inner.reset())

    def stats(self) -> CacheStats:
        """The inner cache's; `extra` says where events are published and how many messages there were."""
        stats, publisher = self._inner.stats(), self._publisher
        events = {"endpoint": publisher.endpoint, "replay": publisher.replay}
        figures = {"published": publisher.published, "overflows": publisher.overflows}
        return replace(stats, extra={**stats.extra, "events": {**events, **figures}})

    def outline(self, limit: int, tokens: int) -> Sequence[Prefix]:
        """As the inner cache."""
        return self._inner.outline(limit, tokens)

    def close(self) -> None:
        """Publish what is left, free the ports, close the inner cache."""
        self._stop()
        self._inner.close()

    def _told(self, evicted: Evicted) -> Evicted:
        self._tell()
        return evicted

    def _tell(self) -> None:
        if events := self._inner.events():
            self._publisher.tell(events)
