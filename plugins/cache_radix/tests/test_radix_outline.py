"""What the cache shows of itself: which prefixes, in which order, held by whom."""

from __future__ import annotations

import numpy as np

from plugins.cache_radix.tests.helpers import PAGE, key, new_cache, store
from srtkit.spec.kv import FULL, Component
from srtkit.spec.prefix_cache import Prefix, PrefixCacheBuild
from srtkit_plugin_cache_radix import RadixOptions
from srtkit_plugin_cache_radix.cache import RadixCache


def told(prefixes: list[Prefix]) -> list[tuple[str, int, int, list[int]]]:
    """First letters, pages from the beginning, place of the parent and own pages."""
    return [
        ("".join(map(chr, one.ids)), one.length // PAGE, one.parent, one.pages["full"].tolist()) for one in prefixes
    ]


def test_prefixes_used_most_come_first_and_parents_before_them() -> None:
    cache = new_cache()
    store(cache, key("ABCD"), [1, 2, 3, 4])
    store(cache, key("ABX"), [1, 2, 5])
    store(cache, key("QR", b"salt"), [6, 7])
    for text in ("ABX", "ABX", "ABCD"):
        cache.release(cache.match(key(text)))
    prefixes = list(cache.outline(10, 1))
    assert told(prefixes) == [("A", 2, -1, [1, 2]), ("X", 3, 0, [5]), ("C", 4, 0, [3, 4]), ("Q", 2, -1, [6, 7])]
    assert [(one.hits, one.namespace) for one in prefixes] == [(4, b""), (2, b""), (1, b""), (0, b"salt")]
    assert told(list(cache.outline(2, 0))) == [("", 2, -1, [1, 2]), ("", 3, 0, [5])]
    assert cache.outline(0, 1) == []
    assert new_cache().outline(10, 1) == []


def test_pins_are_the_leases_that_need_a_prefix() -> None:
    cache = new_cache()
    store(cache, key("ABCD"), [1, 2, 3, 4])
    store(cache, key("ABX"), [1, 2, 5])
    leases = [cache.match(key(text)) for text in ("ABCD", "ABCD", "ABX", "AB", "ABCQ")]
    assert {one.ids: one.pins for one in cache.outline(10, 1)} == {
        (ord("A"),): 5,
        (ord("C"),): 3,
        (ord("D"),): 2,
        (ord("X"),): 1,
    }
    for lease in leases:
        cache.release(lease)
    assert not any(one.pins for one in cache.outline(10, 1))


def test_other_components_are_shown_with_their_holes() -> None:
    window = Component("window", reach="window", window=2 * PAGE)
    cache = RadixCache(PrefixCacheBuild(PAGE, (FULL, window), RadixOptions()), RadixOptions())
    pages = {"full": np.array([1, 2, 3], np.int32), "window": np.array([0, 8, 9], np.int32)}
    cache.release(cache.insert(cache.match(key("ABC")), key("ABC"), pages, 3 * PAGE)[0])
    [one] = cache.outline(10, 1)
    assert one.pages["window"].tolist() == [0, 8, 9]
    cache.evict("window", 2)
    assert one.pages["window"].tolist() == [0, 8, 9], "what was given out changes"
