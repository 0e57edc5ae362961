"""The cache that caches nothing, by its own words; the suite tests the contract."""

from __future__ import annotations

import numpy as np
import pytest

import srtkit_plugin_cache_chunk as plugin
from srtkit.spec.capabilities import No, NoOptions
from srtkit.spec.kv import FULL, Component
from srtkit.spec.prefix_cache import CacheKey, PrefixCache, PrefixCacheBuild
from srtkit_conformance.inside import shortcomings

KEY = CacheKey(np.arange(10, dtype=np.int32))
PAGES = {"full": np.array([5, 6, 7], np.int32)}


def chunk(page_size: int = 4, names: tuple[str, ...] = ("full",)) -> PrefixCache:
    components = tuple(Component(name) for name in names)
    return plugin.build(PrefixCacheBuild(page_size, components, NoOptions()))


def test_it_keeps_the_contract() -> None:
    assert shortcomings("prefix_cache:chunk", level=2) == []


def test_every_page_stays_the_callers() -> None:
    cache = chunk()
    lease, remaps = cache.insert(cache.match(KEY), KEY, PAGES, 8)
    assert (lease.length, lease.pages["full"].tolist(), remaps) == (0, [], [])
    assert cache.stats().cached_pages == {"full": 0}
    assert cache.release(lease).pages["full"].tolist() == []
    assert cache.peek([KEY]) == [0]
    assert cache.evictable("full") == 0


def test_a_lease_ends_once() -> None:
    cache = chunk()
    lease = cache.match(KEY)
    longer, _ = cache.insert(lease, KEY, PAGES, 8)
    with pytest.raises(AssertionError, match="ended already"):
        cache.release(lease)
    cache.release(longer)
    with pytest.raises(AssertionError, match="ended already"):
        cache.release(longer)


def test_takes_components_that_nobody_can_share() -> None:
    state = Component("state", kind="slot", reach="snapshot")
    local = Component("local", reach="window", window=64)
    declared = plugin.capabilities(NoOptions())
    assert {state.reach, local.reach, FULL.reach} <= declared.reaches
    assert isinstance(declared.shares, No)
    assert "own pages" in declared.shares.reason
    lease = plugin.build(PrefixCacheBuild(16, (FULL, state, local), NoOptions())).match(KEY)
    assert {name: len(pages) for name, pages in lease.pages.items()} == {"full": 0, "state": 0, "local": 0}
