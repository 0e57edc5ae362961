"""Copies under way: a move is a run of pages in one direction, as one transfer for each component.

Counts which of the device's pages are busy with one, and keeps those that the inner cache has given up meanwhile
until they are not. Knows no names and no policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from srtkit.spec.prefix_cache import Evicted, Transfer
from srtkit.spec.step_plan import EMPTY, Ints
from srtkit_plugin_cache_hiradix.host import HostPage

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
SERIALS = 2**31 - 1  # they travel as int32, and none lives for so many others
Kind = Literal["save", "load", "store", "fetch"]
"""Device → host, host → device, host → storage, storage → host."""


@dataclass(eq=False)
class Move:
    """`device` are its pages there, per component, empty between host and storage. `left`: transfers not answered."""

    kind: Kind
    host: Sequence[HostPage]
    device: Mapping[str, Ints] = field(default_factory=dict)
    left: int = 0
    failed: bool = False


class DevicePages:
    """The device's pages of one component: who uses them, each count by page. `loose`: see `Moves.busy`."""

    def __init__(self) -> None:
        self._moves = self._pins = EMPTY
        self._given_up: set[int] = set()
        self.loose = 0

    def move(self, pages: Ints, n: int) -> None:
        """A move of these pages begins (1) or ends (-1)."""
        self._reach(pages)
        self.loose += n * self._turned(self._moves, pages, n, self._kept(pages) & (self._pins[pages] == 0))

    def pin(self, pages: Ints, n: int) -> None:
        """A lease on these pages begins (1) or ends (-1)."""
        self._reach(pages)
        self.loose -= n * self._turned(self._pins, pages, n, self._kept(pages) & (self._moves[pages] > 0))

    def give_up(self, pages: Ints) -> Ints:
        """The inner cache gives up pages, which nobody pins; those that are free now. The others wait."""
        self._reach(pages)
        is_busy = self._moves[pages] > 0
        self._given_up.update(pages[is_busy].tolist())
        self.loose -= int(is_busy.sum())
        return pages[~is_busy]

    def now_free(self) -> Ints:
        """Pages that waited and are not busy any more."""
        waiting = np.fromiter(self._given_up, np.int32, len(self._given_up))
        free: Ints = waiting[self._moves[waiting] == 0]
        self._given_up.difference_update(free.tolist())
        return free

    @property
    def held_back(self) -> int:
        """Pages that the inner cache has given up, and that are busy."""
        return len(self._given_up)

    def _kept(self, pages: Ints) -> Flags:
        """Which of them the inner cache still has."""
        if not self._given_up:
            return np.ones(len(pages), bool)
        return np.array([page not in self._given_up for page in pages.tolist()], bool)

    @staticmethod
    def _turned(counts: Ints, pages: Ints, n: int, among: Flags) -> int:
        """Add `n` to the counts of pages; how many `among` them have come from 0, or to it."""
        first = counts[pages] == 0 if n > 0 else counts[pages] == 1
        counts[pages] += n
        return int((first & among).sum())

    def _reach(self, pages: Ints) -> None:
        if (short := int(pages.max(initial=-1)) + 1 - len(self._pins)) > 0:
            more = np.zeros(short, np.int32)
            self._moves, self._pins = np.concatenate((self._moves, more)), np.concatenate((self._pins, more))


class Moves:
    """All moves, from the day they are asked for until every transfer of theirs is answered."""

    def __init__(self, components: Sequence[str]) -> None:
        self._components = components
        self._serial = 0
        self._of: dict[int, Move] = {}  # by transfer id
        self._queue: list[Transfer] = []
        self._pages = {name: DevicePages() for name in components}

    def ask(self, move: Move, there: Mapping[str, Ints | tuple[bytes, ...]], needed_by: float = 0.0) -> int:
        """Ask for a move; returns the id of its last transfer. `there` per component, see `Transfer`."""
        numbers = np.array([page.number for page in move.host], np.int32)
        for page in move.host:
            page.moves += 1
        for name in self._components:
            self._serial = self._serial % SERIALS + 1
            here = move.device.get(name, numbers)
            tier = "host" if move.device else "storage"
            direction: Literal["out", "in"] = "out" if move.kind in ("save", "store") else "in"
            self._queue.append(Transfer(self._serial, name, direction, tier, here, there[name], needed_by))
            self._of[self._serial] = move
            move.left += 1
            if name in move.device:
                self._pages[name].move(here, 1)
        return self._serial

    def take(self) -> list[Transfer]:
        """The transfers that nobody has taken yet."""
        queue, self._queue = self._queue, []
        return queue

    def answer(self, number: int, ok: bool) -> Move | None:
        """The outcome of a transfer. Its move if that was the last one of it: its pages are not busy any more."""
        move = self._of.pop(number)
        move.failed |= not ok
        move.left -= 1
        if move.left:
            return None
        for name, pages in move.device.items():
            self._pages[name].move(pages, -1)
        return move

    def under_way(self, number: int) -> bool:
        """Whether a transfer is not answered yet."""
        return number in self._of

    def pin(self, pages: Mapping[str, Ints], leases: int) -> None:
        """A lease on these pages begins (1) or ends (-1)."""
        for name, ones in pages.items():
            self._pages[name].pin(ones, leases)

    def busy(self, component: str) -> int:
        """Busy pages of the inner cache that no lease pins: it would evict them, and they are not free then. O(1)."""
        return self._pages[component].loose

    def held_back(self, component: str) -> int:
        """Pages that the inner cache has given up, and that are busy. O(1)."""
        return self._pages[component].held_back

    def free_of(self, evicted: Evicted) -> dict[str, Ints]:
        """Of pages that the inner cache gives up, those that are free now. The others wait."""
        return {name: pages.give_up(evicted.pages.get(name, EMPTY)) for name, pages in self._pages.items()}

    def now_free(self) -> Evicted:
        """Pages that waited and are not busy any more."""
        return Evicted({name: pages.now_free() for name, pages in self._pages.items()})
