"""Which pages are copied where: asks for saves, loads, stores and fetches, and finds room on the host for them.

Knows the names of the inner cache's pages and what lies on the host; no leases and no policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np

from srtkit.spec.prefix_cache import Evicted, Lease
from srtkit.spec.step_plan import Ints
from srtkit_plugin_cache_hiradix.host import HostPage, HostTier
from srtkit_plugin_cache_hiradix.moves import Move, Moves
from srtkit_plugin_cache_hiradix.page_keys import of_component


class Copies:
    """Copies between the inner cache's pages, `host` and storage. `hits`: matches of names on the device."""

    def __init__(self, components: Sequence[str], host: HostTier, moves: Moves, store_seconds: float) -> None:
        self.hits: Counter[bytes] = Counter()
        self._components = components
        self._host = host
        self._moves = moves
        self._store_seconds = store_seconds
        self._fetching = 0  # pages of the host that wait for storage
        self._names: dict[str, dict[int, bytes]] = {name: {} for name in components}  # of the inner cache's pages

    def names_of(self, inner: Lease) -> list[bytes]:
        """The names of a lease's pages."""
        first = self._components[0]
        return list(map(self._names[first].__getitem__, inner.pages[first].tolist()))

    def name(self, inner: Lease, names: list[bytes], start: int) -> None:
        """The pages of an inner lease from `start` on have these names."""
        for name in self._components:
            self._names[name].update(zip(inner.pages[name][start:].tolist(), names[start:], strict=True))

    def on_host(self, pages: Mapping[str, Ints]) -> int:
        """How many of the inner cache's pages have their content on the host, too."""
        first = self._components[0]
        names = map(self._names[first].get, pages[first].tolist())
        found = [self._host.get(name) for name in names if name is not None]
        return sum(1 for page in found if page is not None and page.ready)

    def let_go(self, evicted: Evicted) -> Evicted:
        """The inner cache gives these pages up: they lose their names, and those with a move wait for its end."""
        for name in self._components:
            for page in evicted.pages.get(name, ()):
                gone = self._names[name].pop(int(page), None)
                if gone is not None:
                    self.hits.pop(gone, None)
        return Evicted(self._moves.free_of(evicted))

    def save(self, names: Sequence[bytes], pages: Mapping[str, Ints]) -> int:
        """Copy pages to the host unless they are there, or being saved, or there is no room; how many.

        One that storage was to bring is saved, too: nobody saves it later if storage then fails. What storage still
        writes goes to the page that it was given.
        """
        asked = ((i, self._host.add(name)) for i, name in enumerate(names) if not self._host.has_own(name))
        added = list(takewhile(lambda one: one[1] is not None, asked))  # where one has no room, no other has
        index = [i for i, page in added if page is not None]
        if index:
            host = [page for _, page in added if page is not None]
            device = {name: pages[name][index] for name in self._components}
            self._moves.ask(Move("save", host, device), dict.fromkeys(self._components, _numbers(host)))
        return len(index)

    def save_evicted(self, evicted: Evicted) -> int:
        """Save pages that the inner cache gives up: those of which all components go. How many of each."""
        first, *others = self._components
        by_name = {
            component: {self._names[component][page]: page for page in evicted.pages[component].tolist()}
            for component in self._components
        }
        names = [name for name in by_name[first] if all(name in by_name[other] for other in others)]
        pages = {c: np.array([by_name[c][name] for name in names], np.int32) for c in self._components}
        return self.save(names, pages)

    def load(self, run: Sequence[HostPage], pages: Mapping[str, Ints]) -> None:
        """Copy pages of the host into the device's."""
        move = Move("load", run, {name: pages[name].copy() for name in self._components})
        self._moves.ask(move, dict.fromkeys(self._components, _numbers(run)))

    def store(self, pages: Sequence[HostPage]) -> None:
        """Copy pages of the host to storage."""
        if pages:
            self._moves.ask(Move("store", pages), self._keys(pages), self._store_seconds)

    def fetch(self, name: bytes) -> int:
        """Ask storage for one page; the id of a transfer to wait for, 0 if there is none.

        Half of the host may wait for storage: the other takes what is saved, however long storage hangs.
        """
        if page := self._host.get(name):
            return page.coming  # somebody has asked already
        if self._fetching >= self._host.total // 2 or (page := self._host.add(name)) is None:
            return 0
        self._fetching += 1
        page.coming = self._moves.ask(Move("fetch", [page]), self._keys([page]), self._store_seconds)
        return page.coming

    def fetched(self) -> None:
        """A page has come from storage, or never will."""
        self._fetching -= 1

    def _keys(self, pages: Sequence[HostPage]) -> dict[str, tuple[bytes, ...]]:
        first = self._components[0]
        return {c: tuple(of_component(page.name, c, c == first) for page in pages) for c in self._components}


def _numbers(pages: Sequence[HostPage]) -> Ints:
    return np.array([page.number for page in pages], np.int32)
