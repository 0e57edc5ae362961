"""The plainest prefix cache that keeps components of every reach: a dict from prefixes of whole pages to pages.

Slow, and it evicts without any policy, the longest prefix first: for what a scheduler must bear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from srtkit.spec.prefix_cache import (
    CacheEvent,
    CacheKey,
    CacheStats,
    Evicted,
    Lease,
    PrefixCache,
    PrefixCacheBuild,
    Remap,
    Transfer,
)
from srtkit.spec.step_plan import Ints

Pin = tuple[str, int]
"""A component's name and a page."""


class AnyCache(PrefixCache):
    """`wants_every`: pages after which it wants the next snapshot of a sequence that goes on."""

    def __init__(self, build: PrefixCacheBuild, wants_every: int = 2) -> None:
        self.size, self.components = build.page_size, build.components
        self.wants_every = wants_every * self.size
        self.prefixes: dict[tuple[bytes, bytes], dict[str, int]] = {}
        self.pins: Counter[Pin] = Counter()
        self.detached: set[Pin] = set()
        self.age = 0

    def match(self, key: CacheKey) -> Lease:
        known = self._known(key, min(key.limit, len(key.ids)) // self.size)
        n = max(n for n in range(len(known) + 1) if self._usable(known[:n]))
        usable = min(key.limit, len(key.ids)) // self.size
        wanted = sorted({at * self.size for at in (len(known), usable) if at > n})
        return self._lease(known[:n], n, tuple(wanted), with_state=True)

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        lengths = []
        for key in keys:
            known = self._known(key, min(key.limit, len(key.ids)) // self.size)
            lengths.append(self.size * max(n for n in range(len(known) + 1) if self._usable(known[:n])))
        return lengths

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        age, _ = lease.token
        assert lease.length <= upto <= len(key.ids)
        if age != self.age:
            return lease, []
        remaps = []
        n = upto // self.size
        for i in range(n):
            entry = self.prefixes.setdefault(self._name(key, i + 1), {})
            for component in self.components:
                at = 0 if component.kind == "slot" else i
                if component.kind == "slot" and (upto % self.size or i < n - 1 or not len(pages[component.name])):
                    continue
                mine = int(pages[component.name][at])
                if mine and entry.setdefault(component.name, mine) != mine:
                    remaps.append(Remap(component.name, at, mine, entry[component.name]))
        self._unpin(lease)
        longer = self._lease(self._known(key, n), n, (n * self.size + self.wants_every,), with_state=False)
        return longer, remaps

    def release(self, lease: Lease) -> Evicted:
        self._unpin(lease)
        free = [pin for pin in self.detached if not self.pins[pin]]
        self.detached.difference_update(free)
        return self._evicted(free)

    def evictable(self, component: str) -> int:
        return sum(
            1 for entry in self.prefixes.values() if component in entry and not self.pins[component, entry[component]]
        )

    def evict(self, component: str, n: int) -> Evicted:
        free: list[Pin] = []
        whole = {one.name: one.reach == "all" for one in self.components}[component]
        for name in sorted(self.prefixes, key=lambda name: -len(name[1])):
            entry = self.prefixes[name]
            if n > 0 and component in entry and not self.pins[component, entry[component]]:
                gone = list(entry) if whole else [component]
                free += [(one, entry.pop(one)) for one in gone]
                n -= 1
            if not entry:
                del self.prefixes[name]
        assert not any(self.pins[pin] for pin in free)
        return self._evicted(free)

    def reset(self) -> Evicted:
        self.age += 1
        everything = [pin for entry in self.prefixes.values() for pin in entry.items()]
        self.prefixes.clear()
        self.detached.update(pin for pin in everything if self.pins[pin])
        return self._evicted([pin for pin in everything if not self.pins[pin]])

    def stats(self) -> CacheStats:
        cached = Counter(name for entry in self.prefixes.values() for name in entry)
        cached += Counter(name for name, _ in self.detached)
        pinned = Counter(name for (name, _), n in self.pins.items() if n)
        return CacheStats(cached, pinned, len(self.prefixes))

    def transfers(self) -> list[Transfer]:
        return []

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        return Evicted({})

    def events(self) -> list[CacheEvent]:
        return []

    def close(self) -> None:
        """Nothing is held."""

    def _name(self, key: CacheKey, n: int) -> tuple[bytes, bytes]:
        return key.namespace, key.ids[: n * self.size].tobytes()

    def _known(self, key: CacheKey, n: int) -> list[dict[str, int]]:
        """The entries of the leading pages, as far as every component of reach "all" has them."""
        needed = {one.name for one in self.components if one.reach == "all"}
        entries = [self.prefixes.get(self._name(key, i + 1), {}) for i in range(n)]
        known = next((i for i, entry in enumerate(entries) if not needed <= entry.keys()), n)
        return entries[:known]

    def _usable(self, entries: list[dict[str, int]]) -> bool:
        for one in self.components:
            if one.reach == "snapshot" and entries and one.name not in entries[-1]:
                return False
            first = one.first_page(len(entries) * self.size, self.size)
            if one.reach == "window" and not all(one.name in entry for entry in entries[first:]):
                return False
        return True

    def _lease(self, entries: list[dict[str, int]], n: int, wanted: tuple[int, ...], *, with_state: bool) -> Lease:
        pages = {}
        for one in self.components:
            first = one.first_page(n * self.size, self.size)
            held = [entry.get(one.name, 0) if i >= first else 0 for i, entry in enumerate(entries)]
            if one.kind == "slot":
                held = held[-1:] if with_state else []
            pages[one.name] = np.array(held, np.int32)
        pins = [(name, page) for name, row in pages.items() for page in row.tolist() if page]
        self.pins.update(pins)
        return Lease(n * self.size, pages, (self.age, pins), snapshot_at=wanted)

    def _unpin(self, lease: Lease) -> None:
        self.pins.subtract(lease.token[1])

    def _evicted(self, pins: list[Pin]) -> Evicted:
        names = {name for name, _ in pins}
        return Evicted({name: np.array([page for one, page in pins if one == name], np.int32) for name in names})
