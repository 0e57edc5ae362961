"""Which leaf goes first under each policy, and the queue behind it."""

from __future__ import annotations

import heapq
from typing import Literal

import numpy as np
import pytest

from plugins.cache_radix.tests.helpers import PAGE, found, key, new_cache, store
from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import PrefixCacheBuild
from srtkit_plugin_cache_radix import RadixOptions
from srtkit_plugin_cache_radix.cache import RadixCache
from srtkit_plugin_cache_radix.policies import POLICIES, EvictionQueue, Ticket


def order(cache: RadixCache) -> str:
    """Evict all, one page at a time; the letters of the pages in the order they went."""
    letters = ""
    while cache.evictable("full"):
        letters += chr(int(cache.evict("full", 1).pages["full"][0]))
    return letters


def filled(cache: RadixCache) -> RadixCache:
    """Four entries of one page each, stored A B C D, then used: A twice, C once, A's first."""
    for letter, priority in zip("ABCD", (0, 5, 0, 5), strict=True):
        store(cache, key(letter, priority=priority), [ord(letter)])
    for letter in "AAC":
        assert found(cache, key(letter)) == [ord(letter)]
    return cache


@pytest.mark.parametrize(
    ("eviction", "goes"),
    [("lru", "BDAC"), ("lfu", "BDCA"), ("fifo", "ABCD"), ("slru", "BDAC"), ("priority", "ACBD")],
)
def test_order(eviction: str, goes: str) -> None:
    assert order(filled(new_cache(eviction))) == goes


class NewestFirstOptions(RadixOptions):
    """Of a plugin that is not of this repository."""

    eviction: Literal["mru"] = "mru"  # type: ignore[assignment]


def test_another_plugin_brings_a_policy_of_its_own() -> None:
    options = NewestFirstOptions()
    build = PrefixCacheBuild(PAGE, (FULL,), options)
    assert order(filled(RadixCache(build, options, policies={"mru": lambda usage: (-usage.used,)}))) == "CADB"


def test_segmented_lru_keeps_what_was_used_twice_through_a_scan() -> None:
    for eviction, survives in (("slru", True), ("lru", False)):
        cache = new_cache(eviction)
        store(cache, key("A"), [1])
        found(cache, key("A"))
        for number in range(10):
            store(cache, key("BC", b"%d" % number), [10 + 2 * number, 11 + 2 * number])
            cache.evict("full", max(0, cache.stats().cached_pages["full"] - 4))
        assert (found(cache, key("A")) == [1]) is survives


def test_both_parts_of_a_split_keep_the_hits_of_the_whole() -> None:
    cache = new_cache("lfu")
    store(cache, key("ABCD"), [1, 2, 3, 4])
    for _ in range(3):
        found(cache, key("ABCD"))
    assert found(cache, key("AB")) == [1, 2]  # the split
    for number, rest in enumerate(((1, 2, 3, 4), (1, 2))):
        once_used = key("X", b"%d" % number)
        store(cache, once_used, [9])
        for _ in range(2):
            found(cache, once_used)
        assert cache.evict("full", 1).pages["full"].tolist() == [9]
        assert found(cache, key("ABCD")) == [*rest]
        if not number:
            assert sorted(cache.evict("full", 2).pages["full"].tolist()) == [3, 4]


def test_a_higher_priority_is_kept_for_everybody_after() -> None:
    cache = new_cache("priority")
    store(cache, key("A", priority=1), [65])
    store(cache, key("B"), [66])
    cache.release(cache.match(key("B", priority=9)))
    cache.release(cache.match(key("B", priority=-3)))
    store(cache, key("C", priority=-1), [67])
    assert order(cache) == "CAB"


def test_every_policy_has_a_name_in_the_options() -> None:
    for name in POLICIES:
        new_cache(name)
    with pytest.raises(ValueError, match="eviction"):
        new_cache("random")


def test_the_queue_agrees_with_a_sorted_list_and_stays_small() -> None:
    random = np.random.default_rng(5)
    queue: EvictionQueue[int] = EvictionQueue()
    tickets: dict[int, list[object]] = {}
    truth: list[tuple[int, int]] = []
    for number in range(4000):
        if truth and random.random() < 0.48:
            gone = truth.pop(int(random.integers(len(truth))))
            queue.discard(tickets.pop(gone[1]))
        else:
            rank = int(random.integers(50))
            tickets[number] = queue.push((rank,), number)
            truth.append((rank, number))
        assert queue.first() == (min(truth)[1] if truth else None)
        assert len(queue) == len(truth)
        assert len(queue._heap) <= 2 * len(truth) + 65
    assert heapq.nsmallest(1, truth)
    queue.clear()
    assert queue.first() is None


class Counted(tuple[int, ...]):
    """A rank that counts how often one was compared with another."""

    compared = 0

    def __lt__(self, other: tuple[int, ...]) -> bool:
        Counted.compared += 1
        return tuple(self) < tuple(other)


def comparisons(entries: int) -> int:
    """Of one push and the `first` after the entry that was first has gone, the dearest there are."""
    queue: EvictionQueue[int] = EvictionQueue()
    for number in np.random.default_rng(5).permutation(entries).tolist():
        queue.push(Counted((number,)), number)
    Counted.compared = 0
    ticket: Ticket = queue.push(Counted((-1,)), -1)
    assert queue.first() == -1
    queue.discard(ticket)
    assert queue.first() == 0
    return Counted.compared


def test_sixteen_times_the_entries_cost_hardly_more() -> None:
    assert 0 < comparisons(16_000) <= 2 * comparisons(1_000) < 100
