"""What stands beside the pages of reach "all" at the nodes: one component with a budget of its own.

The tree knows only this; windows.py keeps the pages of a window, other caches bring their own. A budget keeps
its part of a node in `node.beside[self.place]`. Its entries come and go without the node, but never outlive it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from srtkit.spec.kv import Component
from srtkit.spec.prefix_cache import Remap
from srtkit.spec.step_plan import Ints

if TYPE_CHECKING:
    from srtkit_plugin_cache_radix.tree import Node

Path = Sequence[tuple["Node", int]]
"""Nodes from a root's child down, each with how many of its tokens count (whole pages; all but the last are whole)."""

NOTHING: Ints = np.empty(0, np.int32)
NOTHING.flags.writeable = False


class Budget(ABC):
    """One component. Counts `cached` entries (pages or slots), of which `pinned` cannot and `evictable` can be freed.

    `cached` and `pinned` include what leases from before a reset still hold.
    """

    def __init__(self, component: Component, place: int, page_size: int) -> None:
        self.component = component
        self.place = place
        self.page_size = page_size
        self.cached = self.pinned = 0

    @property
    def evictable(self) -> int:
        """Entries that `evict` could free now."""
        return self.cached - self.pinned

    @abstractmethod
    def usable(self, path: Path, length: int) -> int:
        """The longest length that this component can serve, at most `length`; both in whole pages of the path."""

    @abstractmethod
    def wanted(self, length: int, found: int, limit: int | None) -> tuple[int, ...]:
        """Lengths beyond a lease's, in whole pages, at which snapshots are wanted.

        The tree has the first `found` tokens of the key, of which a match may use `limit`; None for an insert.
        """

    @abstractmethod
    def lend(self, node: Node, length: int, *, matched: bool) -> Ints:
        """Pin what a lease that ends with `node` after `length` tokens needs. Its entries, as the contract lists them.

        `matched`: the lease is of a match, else of an insert.
        """

    @abstractmethod
    def give_back(self, node: Node, entries: Ints, *, forgotten: bool) -> Ints:
        """Unpin what `lend` gave out. `forgotten`: a reset was since; then returns what nobody holds now."""

    @abstractmethod
    def offer(self, node: Node, offered: Ints, upto: int) -> list[tuple[int, int, int]]:
        """Take what the path that ends with `node` lacks after an insert of `upto` tokens.

        Returns (index, mine, theirs) for entries of the caller that stay its own.
        """

    @abstractmethod
    def differing(self, lent: Ints, offered: Ints) -> list[tuple[int, int, int]]:
        """Under a lease from before a reset nothing is taken: what of the caller's is in place of what was lent."""

    @abstractmethod
    def attach(self, node: Node) -> None:
        """A new node: it has nothing yet."""

    @abstractmethod
    def split(self, upper: Node, lower: Node) -> None:
        """`upper` has been cut off the front of `lower`, and both have their segments."""

    @abstractmethod
    def trim(self, node: Node, keep: int) -> Ints:
        """Only `keep` pages of an unpinned node stay (0: it goes). Returns the entries that go with the rest."""

    @abstractmethod
    def evict(self, n: int) -> tuple[Ints, list[Node]]:
        """Free min(n, evictable) entries. Returns them and the nodes that have none of this component left."""

    @abstractmethod
    def at(self, node: Node) -> Ints:
        """The entries that stand at the node, 0 for those that are gone. Not to be changed, and not to be kept."""

    @abstractmethod
    def forget(self, node: Node) -> Ints:
        """A reset takes the node away: what stands at it unpinned goes, the rest with its leases."""


class Budgets:
    """The budgets of one cache, asked together. Entries go in and out by the names of their components."""

    def __init__(self, budgets: Sequence[Budget]) -> None:
        self._budgets = {budget.component.name: budget for budget in budgets}

    def __bool__(self) -> bool:
        """Whether there are any: a cache of full pages alone, which most are, asks nothing else."""
        return bool(self._budgets)

    def __iter__(self) -> Iterator[Budget]:
        return iter(self._budgets.values())

    def __getitem__(self, name: str) -> Budget:
        return self._budgets[name]

    def usable(self, path: Path, length: int) -> int:
        """The longest length on the path that every budget can serve."""
        before = -1
        while length != before:
            before = length
            for budget in self:
                length = budget.usable(path, length)
        return length

    def wanted(self, length: int, found: int, limit: int | None) -> tuple[int, ...]:
        """Where any of them wants a snapshot, ascending."""
        return tuple(sorted({at for budget in self for at in budget.wanted(length, found, limit)}))

    def lend(self, node: Node, length: int, *, matched: bool) -> dict[str, Ints]:
        """Pin what a lease needs."""
        return {name: budget.lend(node, length, matched=matched) for name, budget in self._budgets.items()}

    def give_back(self, node: Node, lent: Mapping[str, Ints], *, forgotten: bool) -> dict[str, list[Ints]]:
        """Unpin it; what becomes free by that."""
        return {
            name: [budget.give_back(node, lent[name], forgotten=forgotten)] for name, budget in self._budgets.items()
        }

    def offer(self, node: Node, pages: Mapping[str, Ints], upto: int) -> list[Remap]:
        """Take what is lacking; what stays the caller's."""
        return [
            Remap(name, *one) for name, budget in self._budgets.items() for one in budget.offer(node, pages[name], upto)
        ]

    def differing(self, lent: Mapping[str, Ints], pages: Mapping[str, Ints]) -> list[Remap]:
        """What of the caller's is in place of what was lent."""
        return [
            Remap(name, *one)
            for name, budget in self._budgets.items()
            for one in budget.differing(lent[name], pages[name])
        ]
