"""Windows case by case: which lengths match, what a lease holds, what goes first, and what it costs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from plugins.cache_radix.tests.helpers import PAGE, key
from srtkit.spec.kv import FULL, Component
from srtkit.spec.prefix_cache import CacheKey, Lease, PrefixCacheBuild, Remap
from srtkit_plugin_cache_radix import RadixOptions
from srtkit_plugin_cache_radix.cache import RadixCache

WINDOW = Component("window", reach="window", window=2 * PAGE)


def new_cache(*components: Component) -> RadixCache:
    """An empty cache of full pages and a window of two pages, or of other components."""
    return RadixCache(PrefixCacheBuild(PAGE, components or (FULL, WINDOW), RadixOptions()), RadixOptions())


def extend(cache: RadixCache, lease: Lease, what: CacheKey, window: Sequence[int]) -> tuple[Lease, list[Remap]]:
    """Insert all of a key; full pages are 100 and more, `window` names those of the window."""
    pages = {"full": np.arange(100, 100 + len(window), dtype=np.int32), "window": np.array(window, np.int32)}
    return cache.insert(lease, what, pages, len(what.ids))


def store(cache: RadixCache, letters: str, window: Sequence[int]) -> None:
    """Run a sequence from admission to end."""
    cache.release(extend(cache, cache.match(key(letters)), key(letters), window)[0])


def lengths(cache: RadixCache, *texts: str) -> list[int]:
    """Whole pages that a match would find."""
    return [length // PAGE for length in cache.peek([key(text) for text in texts])]


def evicted(cache: RadixCache, component: str, n: int) -> dict[str, list[int]]:
    """What an eviction gives back, by component."""
    return {name: pages.tolist() for name, pages in cache.evict(component, n).pages.items() if len(pages)}


def test_a_lease_names_and_pins_the_window_only() -> None:
    cache = new_cache()
    store(cache, "ABCDEF", [1, 2, 3, 4, 5, 6])
    lease = cache.match(key("ABCDEF"))
    assert lease.pages["window"].tolist() == [0, 0, 0, 0, 5, 6]
    assert (cache.evictable("full"), cache.evictable("window")) == (0, 4)
    assert evicted(cache, "window", 9) == {"window": [1, 2, 3, 4]}
    assert cache.stats().pinned_pages == {"full": 6, "window": 2}
    cache.release(lease)
    assert lengths(cache, "ABCDEF", "ABCDEX", "ABCX") == [6, 0, 0]


def test_the_longest_length_with_a_whole_window_is_found() -> None:
    cache = new_cache()
    store(cache, "ABCDEF", [1, 2, 3, 0, 5, 6])
    assert lengths(cache, "ABCDEF", "ABCDE", "ABCD", "ABC", "A") == [6, 3, 3, 3, 1]
    store(cache, "ABCDEF", [0, 0, 0, 14, 15, 16])  # fills the hole; of the others the cache has its own
    assert lengths(cache, "ABCDE") == [5]
    assert cache.stats().cached_pages == {"full": 6, "window": 6}


def test_what_it_has_already_stays_the_callers() -> None:
    cache = new_cache()
    first, second = cache.match(key("ABCD")), cache.match(key("ABCD"))
    first, _ = extend(cache, first, key("ABCD"), [1, 2, 3, 4])
    assert evicted(cache, "window", 1) == {"window": [1]}
    second, remaps = extend(cache, second, key("ABCD"), [11, 12, 13, 14])
    assert remaps == [Remap("window", i, 11 + i, 1 + i) for i in (1, 2, 3)]
    assert second.pages["window"].tolist() == [0, 0, 3, 4]
    cache.release(first)
    assert cache.evictable("window") == 2


def test_the_end_of_a_prefix_takes_its_window_pages() -> None:
    cache = new_cache()
    store(cache, "ABCD", [1, 2, 0, 4])
    assert evicted(cache, "full", 2) == {"full": [102, 103], "window": [4]}
    assert lengths(cache, "ABCD") == [2]
    assert evicted(cache, "window", 1) == {"window": [1]}
    assert lengths(cache, "ABCD") == [0]
    assert cache.stats().cached_pages == {"full": 2, "window": 1}


def test_without_full_pages_a_node_goes_with_its_last_page() -> None:
    cache = new_cache(WINDOW)
    for letters in ("ABCD", "ABXY"):
        lease, _ = cache.insert(
            cache.match(key(letters)), key(letters), {"window": np.array([1, 2, 3, 4], np.int32)}, 4 * PAGE
        )
        cache.release(lease)
    assert cache.stats().entries == 3
    while cache.evictable("window"):
        cache.evict("window", 1)
    assert cache.stats().entries == 0
    assert cache._tree.find_root(b"") is None


def test_a_reset_leaves_to_a_lease_what_it_holds() -> None:
    cache = new_cache()
    store(cache, "ABCD", [1, 2, 3, 4])
    lease = cache.match(key("ABCD"))
    assert cache.reset().pages["window"].tolist() == [1, 2]
    given = cache.release(lease).pages
    assert (given["full"].tolist(), given["window"].tolist()) == ([100, 101, 102, 103], [3, 4])
    assert cache.stats().cached_pages == {"full": 0, "window": 0}


def test_a_chain_of_any_length_goes_with_its_last_page() -> None:
    """A node for each chunk of a prompt, none of them with pages of its own once its window is behind."""
    cache, chunks = new_cache(WINDOW), 2 * sys.getrecursionlimit()
    ids, pages = np.arange(PAGE * chunks, dtype=np.int32), np.arange(1, chunks + 1, dtype=np.int32)
    lease = cache.match(CacheKey(ids, limit=len(ids)))
    for n in range(1, chunks + 1):
        lease, _ = cache.insert(lease, CacheKey(ids[: PAGE * n], limit=PAGE * n), {"window": pages[:n]}, PAGE * n)
    cache.release(lease)
    gone = 0
    while cache.evictable("window"):
        gone += len(cache.evict("window", 1).pages["window"])
    assert gone == chunks
    assert cache.peek([CacheKey(ids)]) == [0]
