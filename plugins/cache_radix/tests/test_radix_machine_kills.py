"""The suite's random traffic finds faults inside the tree that no answer of the contract shows at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import PrefixCacheBuild
from srtkit_conformance.kits.prefix_cache.machine import run_machine
from srtkit_plugin_cache_radix import RadixOptions
from srtkit_plugin_cache_radix.cache import RadixCache
from srtkit_plugin_cache_radix.keys import Segment
from srtkit_plugin_cache_radix.tree import Node, Tree

Break = Callable[[pytest.MonkeyPatch], None]


def replacing(owner: Any, name: str, wrong: Callable[[Any], Any]) -> Break:
    """A fault: `owner.name` becomes what `wrong` makes of the right one."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(owner, name, wrong(vars(owner)[name]))

    return apply


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


RIGHT_UNPIN, RIGHT_PIN, RIGHT_SPLIT = Tree.unpin, Tree.pin, Tree.split

FAULTS: dict[str, Break] = {
    "does not pin": replacing(Tree, "pin", lambda _: lambda self, node: None),
    "never unpins": replacing(Tree, "unpin", lambda _: lambda self, node: None),
    "unpins twice": replacing(Tree, "unpin", lambda _: unpins_twice),
    "evicts a pinned leaf": replacing(Tree, "pin", lambda _: evicts_pinned_leaf),
    "splits without the hold": replacing(Tree, "split", lambda _: splits_without_hold),
    "a parent never becomes a leaf": replacing(
        Tree, "_settle", lambda right: lambda self, node: right(self, node) if node.hits == 0 else None
    ),
    "compares the first page only": replacing(
        Segment, "common", lambda _: lambda self, other: min(len(self.ids), len(other.ids))
    ),
    "compares ids only": replacing(
        Segment, "common", lambda right: lambda self, other: right(Segment(self.ids), Segment(other.ids))
    ),
    "forgets the spans after a cut": replacing(
        Segment, "tail", lambda right: lambda self, at: Segment(right(self, at).ids)
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError, ValueError)):
        run_machine(radix, 4, (FULL,), salt=0, runs=20, shrink=False)


def radix() -> RadixCache:
    return RadixCache(PrefixCacheBuild(4, (FULL,), RadixOptions()), RadixOptions())
