"""The cache gives back what it took, which is nothing, and finds a lease that is released twice."""

from __future__ import annotations

import numpy as np
import pytest

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import CacheKey, PrefixCache, PrefixCacheBuild
from srtkit_plugin_cache_my_plugin import srtkit_prefix_cache

KEY = CacheKey(np.arange(64, dtype=np.int32))
PAGES = {"full": np.array([7, 3, 9, 1], np.int32)}


@pytest.fixture
def cache() -> PrefixCache:
    options = NoOptions()
    descriptor = srtkit_prefix_cache()
    assert 16 in descriptor.capabilities(options).page_sizes
    return descriptor.build(PrefixCacheBuild(page_size=16, components=(FULL,), options=options))


def test_a_prefix_that_was_offered_stays_unknown(cache: PrefixCache) -> None:
    lease, remaps = cache.insert(cache.match(KEY), KEY, PAGES, upto=64)
    assert (lease.length, remaps) == (0, [])
    assert cache.peek([KEY, KEY]) == [0, 0]
    assert cache.match(KEY).length == 0
    assert cache.evictable("full") == 0
    assert cache.stats().cached_pages == {"full": 0}


def test_every_page_stays_the_callers(cache: PrefixCache) -> None:
    lease, _ = cache.insert(cache.match(KEY), KEY, PAGES, upto=64)
    given_back = [cache.evict("full", 4), cache.reset(), cache.release(lease), cache.complete([], [])]
    assert [evicted.pages["full"].tolist() for evicted in given_back] == [[], [], [], []]


def test_a_lease_ends_once(cache: PrefixCache) -> None:
    first = cache.match(KEY)
    second, _ = cache.insert(first, KEY, PAGES, upto=64)
    cache.release(second)
    for ended in (first, second):
        with pytest.raises(AssertionError):
            cache.release(ended)
