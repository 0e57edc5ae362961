"""What the contract promises of the radix cache, case by case."""

from __future__ import annotations

import numpy as np
import pytest

from plugins.cache_radix.tests.helpers import extend, found, key, new_cache, store
from srtkit.spec.errors import Unsupported
from srtkit.spec.kv import FULL, Component
from srtkit.spec.prefix_cache import PrefixCacheBuild, Remap
from srtkit_plugin_cache_radix import RadixOptions, build, capabilities


def test_finds_the_longest_prefix_in_whole_pages() -> None:
    cache = new_cache()
    store(cache, key("ABCd"), [1, 2, 3, 4])
    assert found(cache, key("ABCD")) == [1, 2, 3]
    assert found(cache, key("ABX")) == [1, 2]
    assert found(cache, key("ABc")) == [1, 2]
    assert found(cache, key("XBC")) == []
    assert found(cache, key("")) == []


def test_a_partial_page_stays_the_callers() -> None:
    cache = new_cache()
    lease, remaps = extend(cache, cache.match(key("Ab")), key("Ab"), [1, 2])
    assert (lease.length, lease.pages["full"].tolist(), remaps) == (4, [1], [])
    assert cache.stats().cached_pages == {"full": 1}


def test_a_split_keeps_older_leases_whole() -> None:
    cache = new_cache()
    long, _ = extend(cache, cache.match(key("ABCD")), key("ABCD"), [1, 2, 3, 4])
    short = cache.match(key("ABX"))
    assert cache.stats().entries == 2
    cache.release(short)
    assert cache.evictable("full") == 0
    cache.release(long)
    assert cache.evictable("full") == 4
    assert found(cache, key("ABCD")) == [1, 2, 3, 4]


def test_a_short_lease_pins_its_part_of_a_node_only() -> None:
    cache = new_cache()
    store(cache, key("ABCD"), [1, 2, 3, 4])
    lease = cache.match(key("AB"))
    assert cache.evictable("full") == 2
    assert sorted(cache.evict("full", 9).pages["full"].tolist()) == [3, 4]
    cache.release(lease)


def test_pages_it_has_already_stay_the_callers() -> None:
    cache = new_cache()
    first, second = cache.match(key("ABC")), cache.match(key("ABC"))
    first, _ = extend(cache, first, key("ABC"), [1, 2, 3])
    second, remaps = extend(cache, second, key("ABCDe"), [11, 12, 13, 14, 15])
    assert remaps == [Remap("full", 0, 11, 1), Remap("full", 1, 12, 2), Remap("full", 2, 13, 3)]
    assert second.pages["full"].tolist() == [1, 2, 3, 14]
    # A caller that keeps its own pages is told again, or it would take them for the cache's.
    second, again = extend(cache, second, key("ABCDE"), [11, 12, 13, 14, 15])
    assert again == remaps
    # One that took the cache's is not.
    second, none = extend(cache, second, key("ABCDEF"), [1, 2, 3, 14, 15, 16])
    assert none == []
    assert cache.stats().cached_pages == {"full": 6}
    cache.release(first)
    cache.release(second)


def test_leased_pages_cannot_be_written() -> None:
    cache = new_cache()
    store(cache, key("AB"), [1, 2])
    store(cache, key("ABC"), [1, 2, 3])
    for what in ("AB", "ABC"):
        with pytest.raises(ValueError, match="read-only"):
            cache.match(key(what)).pages["full"][0] = 7


def test_an_empty_namespace_leaves_nothing_behind() -> None:
    cache = new_cache()
    for number in range(3):
        found(cache, key("A", b"%d" % number))
    store(cache, key("AB", b"x"), [1, 2])
    cache.evict("full", 2)
    assert [cache._tree.find_root(name) for name in (b"0", b"1", b"2", b"x")] == [None] * 4


def test_peek_changes_neither_order_nor_nodes() -> None:
    cache = new_cache()
    store(cache, key("AB"), [1, 2])
    store(cache, key("XY"), [3, 4])
    entries = cache.stats().entries
    assert cache.peek([key("AC"), key("AB"), key("Q"), key("A", b"no")]) == [4, 8, 0, 0]
    assert cache.stats().entries == entries
    assert cache.evict("full", 1).pages["full"].tolist() == [2]


def test_evicts_exactly_as_many_from_the_ends() -> None:
    cache = new_cache()
    store(cache, key("ABCD"), [1, 2, 3, 4])
    assert cache.evict("full", 0).pages["full"].tolist() == []
    assert cache.evict("full", 1).pages["full"].tolist() == [4]
    assert cache.evict("full", 2).pages["full"].tolist() == [2, 3]
    assert found(cache, key("ABCD")) == [1]
    assert cache.evict("full", 9).pages["full"].tolist() == [1]
    assert cache.stats().entries == 0


def test_what_is_left_of_a_node_does_not_keep_all_of_it_in_memory() -> None:
    cache = new_cache()
    store(cache, key("ABCDEFGH"), list(range(1, 9)))
    cache.release(cache.match(key("A")))
    for _ in range(6):
        cache.evict("full", 1)
    root = cache._tree.find_root(b"")
    assert root is not None
    (head,) = root.children.values()
    for node in (head, *head.children.values()):
        whole = node.segment.ids.base
        assert whole is None or len(whole) <= 2 * node.n_tokens


def test_a_parent_goes_only_after_its_children() -> None:
    cache = new_cache()
    store(cache, key("ABC"), [1, 2, 3])
    store(cache, key("ABX"), [1, 2, 4])
    freed = [cache.evict("full", 1).pages["full"].tolist() for _ in range(4)]
    assert freed == [[3], [4], [2], [1]]


def test_evictable_counts_what_no_lease_covers() -> None:
    cache = new_cache()
    store(cache, key("ABC"), [1, 2, 3])
    store(cache, key("ABX"), [1, 2, 4])
    first, second = cache.match(key("ABC")), cache.match(key("ABC"))
    assert (cache.evictable("full"), cache.stats().pinned_pages) == (1, {"full": 3})
    cache.release(first)
    assert cache.evictable("full") == 1
    assert sorted(cache.evict("full", 9).pages["full"].tolist()) == [4]
    cache.release(second)
    assert cache.evictable("full") == 3


def test_reset_returns_pinned_pages_with_their_last_lease() -> None:
    cache = new_cache()
    store(cache, key("ABCD"), [1, 2, 3, 4])
    store(cache, key("Q"), [9])
    long, short = cache.match(key("ABC")), cache.match(key("AB"))
    assert sorted(cache.reset().pages["full"].tolist()) == [4, 9]
    assert cache.peek([key("ABCD")]) == [0]
    assert cache.evictable("full") == 0
    assert cache.stats().cached_pages == cache.stats().pinned_pages == {"full": 3}
    assert cache.release(long).pages["full"].tolist() == [3]
    assert sorted(cache.release(short).pages["full"].tolist()) == [1, 2]
    assert cache.stats().cached_pages == {"full": 0}


def test_a_lease_ends_once() -> None:
    cache = new_cache()
    lease = cache.match(key("A"))
    longer, _ = extend(cache, lease, key("A"), [1])
    with pytest.raises(AssertionError, match="ended already"):
        cache.release(lease)
    cache.release(longer)
    with pytest.raises(AssertionError, match="ended already"):
        cache.release(longer)
    with pytest.raises(AssertionError, match="ended already"):
        extend(cache, longer, key("A"), [1])


def test_components_share_the_tree_and_keep_their_pages_apart() -> None:
    cache = build(PrefixCacheBuild(4, (FULL, Component("indexer")), RadixOptions()))
    pages = {"full": np.array([1, 2], np.int32), "indexer": np.array([7, 8], np.int32)}
    cache.release(cache.insert(cache.match(key("AB")), key("AB"), pages, 8)[0])
    lease = cache.match(key("AB"))
    other = {"full": np.array([1, 2], np.int32), "indexer": np.array([7, 9], np.int32)}
    lease, remaps = cache.insert(lease, key("AB"), other, 8)
    assert remaps == [Remap("indexer", 1, 9, 8)]
    cache.release(lease)
    evicted = cache.evict("indexer", 1)
    assert {name: pages.tolist() for name, pages in evicted.pages.items()} == {"full": [2], "indexer": [8]}


@pytest.mark.parametrize(
    ("page_size", "component", "says"),
    [
        (0, FULL, "page size 0"),
        (257, FULL, "page size 257"),
        (16, Component("state", kind="slot", reach="snapshot"), "reach snapshot"),
        (16, Component("draft", lookahead=1), "1 tokens ahead"),
    ],
)
def test_what_it_does_not_declare_it_refuses(page_size: int, component: Component, says: str) -> None:
    declared = capabilities(RadixOptions())
    assert page_size not in declared.page_sizes or component.reach not in declared.reaches or component.lookahead
    with pytest.raises(Unsupported, match=says):
        build(PrefixCacheBuild(page_size, (component,), RadixOptions()))
