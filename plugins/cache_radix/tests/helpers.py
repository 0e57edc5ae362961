"""Short words for the direct tests: a cache of page size 4 with one component, keys, and stored sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import CacheKey, Lease, PrefixCacheBuild, Remap
from srtkit_plugin_cache_radix import RadixOptions
from srtkit_plugin_cache_radix.cache import RadixCache

PAGE = 4
Spans = tuple[tuple[int, int, bytes], ...]


def new_cache(eviction: str = "lru", events: bool = False) -> RadixCache:
    """An empty cache."""
    options = RadixOptions.model_validate({"eviction": eviction, "events": events})
    return RadixCache(PrefixCacheBuild(PAGE, (FULL,), options), options)


def key(letters: str, namespace: bytes = b"", spans: Spans = (), priority: int = 0) -> CacheKey:
    """A key in which every letter stands for one page of equal tokens; a lower-case letter for half a page."""
    ids = [ord(letter.upper()) for letter in letters for _ in range(PAGE if letter.isupper() else PAGE // 2)]
    return CacheKey(np.array(ids, np.int32), namespace, spans, priority=priority)


def extend(cache: RadixCache, lease: Lease, what: CacheKey, pages: Sequence[int]) -> tuple[Lease, list[Remap]]:
    """Insert all of a key with these pages."""
    return cache.insert(lease, what, {"full": np.array(pages, np.int32)}, len(what.ids))


def store(cache: RadixCache, what: CacheKey, pages: Sequence[int]) -> None:
    """Run a sequence from admission to end."""
    lease, _ = extend(cache, cache.match(what), what, pages)
    cache.release(lease)


def found(cache: RadixCache, what: CacheKey) -> list[int]:
    """The pages that a match finds."""
    lease = cache.match(what)
    cache.release(lease)
    return [int(page) for page in lease.pages["full"]]
