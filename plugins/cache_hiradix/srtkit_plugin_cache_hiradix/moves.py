"""Copies under way: a move is a run of pages in one direction, as one transfer for each component.

Counts which of the device's pages are busy with one, and keeps those that the inner cache has given up meanwhile
until they are not. Knows no names and no policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from srtkit.spec.prefix_cache import Evicted, Transfer
from srtkit.spec.step_plan import EMPTY, Ints
from srtkit_plugin_cache_hiradix.host import HostPage

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


class Moves:
    """All moves, from the day they are asked for until every transfer of theirs is answered."""

    def __init__(self, components: Sequence[str]) -> None:
        self._components = components
        self._serial = 0
        self._of: dict[int, Move] = {}  # by transfer id
        self._queue: list[Transfer] = []
        self._busy: dict[str, Counter[int]] = {name: Counter() for name in components}
        self._given_up: dict[str, set[int]] = {name: set() for name in components}
        self._pins: dict[str, Ints] = dict.fromkeys(components, EMPTY)  # leases, by page

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
                self._busy[name].update(here.tolist())
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
            busy = self._busy[name]
            busy.subtract(pages.tolist())
            for page in pages.tolist():
                if not busy[page]:
                    del busy[page]
        return move

    def under_way(self, number: int) -> bool:
        """Whether a transfer is not answered yet."""
        return number in self._of

    def pin(self, pages: Mapping[str, Ints], leases: int) -> None:
        """A lease on these pages begins (1) or ends (-1)."""
        for name, ones in pages.items():
            if (needed := int(ones.max(initial=-1)) + 1) > len(self._pins[name]):
                self._pins[name] = np.concatenate((self._pins[name], np.zeros(needed, np.int32)))
            self._pins[name][ones] += leases

    def busy(self, component: str) -> int:
        """Busy pages of the inner cache that no lease pins: it would evict them, and they are not free then."""
        pins, given_up = self._pins[component], self._given_up[component]
        return sum(1 for page in self._busy[component] if page not in given_up and not pins[page])

    def held_back(self, component: str) -> int:
        """Pages that the inner cache has given up, and that are busy."""
        return len(self._given_up[component])

    def free_of(self, evicted: Evicted) -> dict[str, Ints]:
        """Of pages that the inner cache gives up, those that are free now. The others wait."""
        free: dict[str, Ints] = {}
        for name in self._components:
            pages = evicted.pages.get(name, EMPTY)
            is_busy = np.array([page in self._busy[name] for page in pages.tolist()], bool)
            self._given_up[name].update(pages[is_busy].tolist())
            free[name] = pages[~is_busy]
        return free

    def now_free(self) -> Evicted:
        """Pages that waited and are not busy any more."""
        free: dict[str, Ints] = {}
        for name, waiting in self._given_up.items():
            pages = [page for page in waiting if page not in self._busy[name]]
            waiting.difference_update(pages)
            free[name] = np.array(pages, np.int32)
        return Evicted(free)
