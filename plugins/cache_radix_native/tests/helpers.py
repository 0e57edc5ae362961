"""Short words for the direct tests: a cache of page size 4 with one component, stored sequences, and counted nodes."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np

from plugins.cache_radix.tests.helpers import PAGE
from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import CacheKey, Lease, PrefixCache, PrefixCacheBuild, Remap
from srtkit_plugin_cache_radix_native import RadixOptions
from srtkit_plugin_cache_radix_native.cache import NativeRadixCache
from srtkit_plugin_cache_radix_native.library import load


def new_cache(eviction: str = "lru", events: bool = False) -> NativeRadixCache:
    """An empty cache."""
    options = RadixOptions.model_validate({"eviction": eviction, "events": events})
    return NativeRadixCache(PrefixCacheBuild(PAGE, (FULL,), options))


def extend(cache: PrefixCache, lease: Lease, what: CacheKey, pages: Sequence[int]) -> tuple[Lease, list[Remap]]:
    """Insert all of a key with these pages."""
    return cache.insert(lease, what, {"full": np.array(pages, np.int32)}, len(what.ids))


def store(cache: PrefixCache, what: CacheKey, pages: Sequence[int]) -> None:
    """Run a sequence from admission to end."""
    cache.release(extend(cache, cache.match(what), what, pages)[0])


def nodes_alive() -> int:
    """Nodes of all caches of this process, after those of caches that nobody has any more are gone."""
    gc.collect()
    return int(load().nodes_alive())
