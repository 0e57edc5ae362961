"""The machine finds wrong caches: the radix cache with one fault each must not pass it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings

from plugins.cache_radix.tests.cache_machine import SETTINGS, check_cache
from plugins.cache_radix.tests.test_radix_machine import radix
from srtkit.spec.prefix_cache import CacheKey, Evicted
from srtkit_plugin_cache_radix import cache as cache_module
from srtkit_plugin_cache_radix.cache import RadixCache
from srtkit_plugin_cache_radix.keys import Segment, segment_of
from srtkit_plugin_cache_radix.tree import Node, Tree

Break = Callable[[pytest.MonkeyPatch], None]


def replacing(owner: Any, name: str, wrong: Callable[[Any], Any]) -> Break:
    """A fault: `owner.name` becomes what `wrong` makes of the right one."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(owner, name, wrong(vars(owner)[name]))

    return apply


def with_key(change: Callable[[CacheKey], CacheKey]) -> Break:
    """A fault: the cache sees another key, everywhere."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        match, peek, insert = RadixCache.match, RadixCache.peek, RadixCache.insert
        patch.setattr(RadixCache, "match", lambda self, key: match(self, change(key)))
        patch.setattr(RadixCache, "peek", lambda self, keys: peek(self, [change(key) for key in keys]))
        patch.setattr(
            RadixCache, "insert", lambda self, lease, key, pages, upto: insert(self, lease, change(key), pages, upto)
        )

    return apply


def pads_the_last_page(patch: pytest.MonkeyPatch) -> None:
    """Takes a partial page as if the rest were zeros."""
    insert = RadixCache.insert

    def wrong(self: RadixCache, lease: Any, key: CacheKey, pages: Any, upto: int) -> Any:
        missing = -upto % 4
        padded = replace(key, ids=np.pad(key.ids[:upto], (0, missing)))
        return insert(self, lease, padded, pages, upto + missing)

    patch.setattr(RadixCache, "insert", wrong)


def keeps_one_page(self: RadixCache, component: str, n: int) -> Evicted:
    evicted = RIGHT_EVICT(self, component, n)
    return Evicted({name: pages[1:] for name, pages in evicted.pages.items()})


def ages_nothing(self: RadixCache) -> Evicted:
    evicted = RIGHT_RESET(self)
    self._age = 0
    return evicted


def unpins_twice(self: Tree, node: Node) -> None:
    RIGHT_UNPIN(self, node)
    if node.holds:
        RIGHT_UNPIN(self, node)


def evicts_pinned_leaf(self: Tree, node: Node | None) -> None:
    ticket = node.ticket if node is not None else None
    if node is not None:
        node.ticket = None
    RIGHT_PIN(self, node)
    if node is not None:
        node.ticket = ticket


def splits_without_hold(self: Tree, node: Node, at: int) -> Node:
    upper = RIGHT_SPLIT(self, node, at)
    upper.holds = 0
    return upper


RIGHT_EVICT, RIGHT_RESET = RadixCache.evict, RadixCache.reset
RIGHT_UNPIN, RIGHT_PIN, RIGHT_SPLIT = Tree.unpin, Tree.pin, Tree.split

FAULTS: dict[str, Break] = {
    "ignores the namespace": with_key(lambda key: replace(key, namespace=b"")),
    "ignores spans": with_key(lambda key: replace(key, spans=())),
    "ignores the limit": with_key(lambda key: replace(key, limit=2**30)),
    "pads the last page": pads_the_last_page,
    "does not pin": replacing(Tree, "pin", lambda _: lambda self, node: None),
    "never unpins": replacing(Tree, "unpin", lambda _: lambda self, node: None),
    "unpins twice": replacing(Tree, "unpin", lambda _: unpins_twice),
    "evicts a pinned leaf": replacing(Tree, "pin", lambda _: evicts_pinned_leaf),
    "splits without the hold": replacing(Tree, "split", lambda _: splits_without_hold),
    "a parent never becomes a leaf": replacing(
        Tree, "_settle", lambda right: lambda self, node: right(self, node) if node.hits == 0 else None
    ),
    "says nothing of duplicates": replacing(RadixCache, "_remaps", lambda _: lambda self, mine, theirs: []),
    "loses a duplicate": replacing(
        RadixCache, "_remaps", lambda right: lambda self, mine, theirs: right(self, mine, theirs)[1:]
    ),
    "keeps an evicted page": replacing(RadixCache, "evict", lambda _: keeps_one_page),
    "reset forgets no leases": replacing(RadixCache, "reset", lambda _: ages_nothing),
    "reset keeps the tree": replacing(RadixCache, "reset", lambda _: lambda self: self._evicted([])),
    "compares the first page only": replacing(
        Segment, "common", lambda _: lambda self, other: min(len(self.ids), len(other.ids))
    ),
    "compares ids only": replacing(
        Segment, "common", lambda right: lambda self, other: right(Segment(self.ids), Segment(other.ids))
    ),
    "forgets the spans after a cut": replacing(
        Segment, "tail", lambda right: lambda self, at: Segment(right(self, at).ids)
    ),
    "spans without their length": replacing(
        cache_module,
        "segment_of",
        lambda _: (
            lambda key, length: Segment(
                segment_of(key, length).ids, tuple((at, one[:-4]) for at, one in segment_of(key, length).marks)
            )
        ),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError, ValueError)):
        check_cache(radix(), how=settings(SETTINGS, phases=[Phase.generate]))
