"""Wrong calls are refused before they change anything, and no node outlives its cache."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plugins.cache_radix.tests.helpers import PAGE, key
from plugins.cache_radix_native.tests.helpers import extend, new_cache, nodes_alive, store
from srtkit.spec.errors import OutOfMemory
from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import CacheKey, PrefixCache, PrefixCacheBuild
from srtkit_conformance.kits.prefix_cache.machine import run_machine
from srtkit_plugin_cache_radix_native import RadixOptions
from srtkit_plugin_cache_radix_native.cache import NativeRadixCache

pytestmark = pytest.mark.usefixtures("library")


def test_a_lease_of_another_cache_is_refused() -> None:
    one, other = new_cache(), new_cache()
    store(one, key("A"), [1])
    lease, foreign = one.match(key("A")), other.match(key("A"))
    for wrong in (foreign, replace(foreign, token=object()), replace(foreign, token=7)):
        with pytest.raises(AssertionError, match="of another cache"):
            one.release(wrong)
        with pytest.raises(AssertionError, match="of another cache"):
            extend(one, wrong, key("A"), [1])
    assert one.stats().pinned_pages == {"full": 1}
    one.release(lease)
    other.release(foreign)


def test_a_lease_is_released_once_after_a_reset_too() -> None:
    cache = new_cache()
    store(cache, key("A"), [1])
    lease = cache.match(key("A"))
    cache.reset()
    assert cache.release(lease).pages["full"].tolist() == [1]
    with pytest.raises(AssertionError, match="ended already"):
        cache.release(lease)


def test_an_insert_that_says_too_much_is_refused() -> None:
    cache = new_cache()
    store(cache, key("AB"), [1, 2])
    lease = cache.match(key("AB"))
    pages = {"full": np.array([1, 2], np.int32)}
    with pytest.raises(AssertionError, match="ends before its lease"):
        cache.insert(lease, key("AB"), pages, PAGE)
    for what, given in (
        (key("ABC"), pages),  # fewer pages
        (key("AB"), {"full": np.array([1, 2, 3], np.int32)}),  # fewer tokens
        (CacheKey(key("ABC").ids.astype(np.int16)), {"full": np.array([1, 2, 3], np.int32)}),
        (key("ABC"), {"full": np.array([1, 2, 3], np.int64)}),
    ):
        with pytest.raises(AssertionError, match="fewer than the call says, or not int32"):
            cache.insert(lease, what, given, 3 * PAGE)  # type: ignore[arg-type]
    assert extend(cache, lease, key("ABC"), [1, 2, 3])[0].length == 3 * PAGE


@pytest.mark.parametrize("spans", [((0, 3, b"x"), (2, 5, b"y")), ((2, 2, b"x"),), ((-1, 2, b"x"),)])
def test_spans_that_overlap_or_are_empty_are_refused(spans: tuple[tuple[int, int, bytes], ...]) -> None:
    with pytest.raises(AssertionError, match="empty or overlap"):
        new_cache().match(key("AB", spans=spans))


def test_after_close_calls_are_refused_and_figures_are_0() -> None:
    cache = new_cache()
    store(cache, key("AB"), [1, 2])
    lease = cache.match(key("A"))
    cache.close()
    cache.close()
    for call in (
        lambda: cache.match(key("A")),
        lambda: cache.peek([key("A")]),
        lambda: extend(cache, lease, key("A"), [1]),
        lambda: cache.release(lease),
        lambda: cache.evict("full", 1),
        cache.events,
        cache.reset,
    ):
        with pytest.raises(AssertionError, match="closed"):
            call()
    assert lease.pages["full"].tolist() == [1], "what was lent is the caller's copy"
    assert (cache.evictable("full"), cache.stats().entries) == (0, 0)


def test_an_empty_namespace_leaves_nothing_behind() -> None:
    before = nodes_alive()
    cache = new_cache()
    for number in range(3):
        cache.release(cache.match(key("A", b"%d" % number)))
    store(cache, key("AB", b"x"), [1, 2])
    assert nodes_alive() == before + 2  # a root and a leaf
    cache.evict("full", 2)
    assert nodes_alive() == before


def test_a_reset_keeps_only_what_leases_hold() -> None:
    before = nodes_alive()
    cache = new_cache()
    store(cache, key("ABCD"), [1, 2, 3, 4])
    store(cache, key("ABXY"), [1, 2, 5, 6])
    store(cache, key("Q", b"adapter"), [7])
    lease = cache.match(key("ABC"))
    cache.reset()
    assert nodes_alive() == before + 3  # its root, AB and C
    cache.release(lease)
    assert nodes_alive() == before


def test_a_cache_that_nobody_has_frees_all_it_held() -> None:
    before = nodes_alive()
    for close in (True, False):
        cache = new_cache()
        store(cache, key("ABCD"), [1, 2, 3, 4])
        cache.match(key("AB"))
        cache.reset()
        store(cache, key("XY"), [5, 6])
        cache.match(key("X"))
        assert nodes_alive() > before
        if close:
            cache.close()
        del cache
        assert nodes_alive() == before


def test_random_traffic_leaves_nothing_behind() -> None:
    """The suite's machine ends with everything evicted and the cache closed; here all pages collide."""

    def make() -> PrefixCache:
        return NativeRadixCache(PrefixCacheBuild(4, (FULL,), RadixOptions(events=True)), hash_mask=0)

    before = nodes_alive()
    run_machine(make, 4, (FULL,), salt=0, runs=20, shrink=True)
    assert nodes_alive() == before


def test_a_path_may_be_as_long_as_a_context() -> None:
    """One node a token: nothing may recurse along a path."""
    cache = NativeRadixCache(PrefixCacheBuild(1, (FULL,), RadixOptions()))
    n = 20_000
    what = CacheKey(np.arange(n, dtype=np.int32))
    pages = {"full": np.arange(1, n + 1, dtype=np.int32)}
    lease = cache.match(CacheKey(what.ids, limit=0))
    for upto in range(1000, n + 1, 1000):
        lease, _ = cache.insert(lease, what, pages, upto)
    for limit in range(n - 1, n - 3000, -1):
        cache.release(cache.match(CacheKey(what.ids, limit=limit)))
    assert cache.stats().entries > 3000
    assert lease.pages["full"].tolist() == pages["full"].tolist()
    cache.release(lease)
    assert cache.match(what).pages["full"].tolist() == pages["full"].tolist()
    before = nodes_alive()
    cache.close()
    assert before - nodes_alive() > 3000


def test_a_short_prefix_does_not_keep_the_memory_of_what_went() -> None:
    """Of 100 sequences of 256 KiB the first page is kept; the rest goes in two pieces, the last less than a quarter."""
    cache = NativeRadixCache(PrefixCacheBuild(16, (FULL,), RadixOptions(eviction="slru")))
    n = 1 << 16
    pages = {"full": np.arange(1, n // 16 + 1, dtype=np.int32)}

    def keep_first_page(number: int) -> None:
        ids = np.arange(number * n, (number + 1) * n, dtype=np.int32)
        cache.release(cache.insert(cache.match(CacheKey(ids)), CacheKey(ids), pages, n)[0])
        cache.release(cache.match(CacheKey(ids, limit=16)))  # so it has been used again, and goes last
        cache.evict("full", n // 16 - 101)
        cache.evict("full", 100)

    keep_first_page(0)
    before = process_bytes(1)
    for number in range(1, 101):
        keep_first_page(number)
    assert cache.stats().cached_pages == {"full": 101}
    assert process_bytes(1) - before < 8 << 20


def test_memory_that_is_not_there_is_told_and_nothing_is_asked_of_it_again() -> None:
    """A key with a span is copied: 128 MiB, of which the system gives 32."""
    cache = new_cache()
    what = CacheKey(np.zeros(1 << 25, np.int32), spans=((0, 4, b"image"),))
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (process_bytes(0) + (32 << 20), before[1]))
    try:
        with pytest.raises(OutOfMemory, match="prefix_cache:radix-native"):
            cache.peek([what])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    with pytest.raises(AssertionError, match="ran out of memory before"):
        cache.reset()


def test_a_lease_that_python_had_no_memory_for_is_not_left_behind() -> None:
    """One of the allocations of a call fails, whichever it is: then the cache is not used any more."""
    hooks = pytest.importorskip("_testcapi")
    what, refused = key("ABCD"), 0
    for nth in range(6):
        cache = new_cache()
        store(cache, what, [1, 2, 3, 4])
        match = cache._c.match
        hooks.set_nomemory(nth, nth + 1)
        try:
            match(what.ids, len(what.ids), None)
        except MemoryError:
            refused += 1
            with pytest.raises(AssertionError, match="ran out of memory before"):
                cache.match(what)
        finally:
            hooks.remove_mem_hooks()
    assert refused


def process_bytes(which: int) -> int:
    """0: addresses of this process, 1: its memory."""
    return int(Path("/proc/self/statm").read_text().split()[which]) * resource.getpagesize()
