"""The cache: another one for the device's pages, and below it host memory and storage. Knows no tensor.

Every page of the inner cache has a name (page_keys.py); the names say what lies on the host (host.py). Copies are
asked for as moves (moves.py). Whatever becomes of them, a page is found on the host only when its copy is done.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from srtkit.spec.errors import Unsupported
from srtkit.spec.prefix_cache import (
    CacheEvent,
    CacheKey,
    CacheStats,
    Evicted,
    Lease,
    Prefix,
    PrefixCache,
    PrefixCacheBuild,
    Remap,
    Transfer,
)
from srtkit.spec.step_plan import EMPTY, Ints
from srtkit_plugin_cache_hiradix import HiradixOptions
from srtkit_plugin_cache_hiradix.copies import Copies
from srtkit_plugin_cache_hiradix.host import HostPage, HostTier
from srtkit_plugin_cache_hiradix.moves import Moves
from srtkit_plugin_cache_hiradix.page_keys import PageKeys

PART = "prefix_cache:hiradix"


class Hold:
    """A lease's token: the inner cache's lease, the names of its pages, and what `load` needs if there is any."""

    __slots__ = ("host", "inner", "key", "names")

    def __init__(self, inner: Lease, names: list[bytes]) -> None:
        self.inner = inner
        self.names = names
        self.key: CacheKey | None = None
        self.host: list[HostPage] = []


class HiradixCache(PrefixCache):
    """Device → host → storage, by composition: every question about the device's pages is the inner cache's."""

    def __init__(self, build: PrefixCacheBuild) -> None:
        """Raises `Unsupported` for components that need more than pages of every earlier token."""
        assert isinstance(build.options, HiradixOptions) and build.needs is not None
        for component in build.components:
            if component.reach != "all" or component.lookahead:
                cause = f"component {component.name} has reach {component.reach}, lookahead {component.lookahead}"
                raise Unsupported(PART, f"{cause}; it keeps tiers of plain ones", 'use another cache, e.g. "radix"')
        inner = build.needs["inner"]
        assert isinstance(inner, PrefixCache)
        self._inner = inner
        self._options = build.options
        self._page_size, self._page_bytes = build.page_size, build.page_bytes
        self._storing = build.options.storage is not None
        self._components = tuple(component.name for component in build.components)
        self._page_keys = PageKeys(build.identity, build.page_size)
        self._host = HostTier(build.options.host_pages(build.page_bytes))
        self._moves = Moves(self._components)
        self._copies = Copies(self._components, self._host, self._moves, build.options.store_seconds)
        self._tickets: dict[int, tuple[list[int], float]] = {}  # transfers that are waited for, and until when
        self._moved: Counter[str] = Counter()  # pages by kind of move

    # --- leases ---

    def match(self, key: CacheKey) -> Lease:
        """The device's prefix, pinned; `pending` is what the host has beyond it."""
        inner = self._inner.match(key)
        hold = Hold(inner, self._copies.names_of(inner))
        usable = _usable(key, self._page_size)
        names = self._page_keys.extended(hold.names, key, usable) if len(self._host) else hold.names
        n = len(hold.names)
        if self._options.write_policy == "write-through-selective":
            hits, enough = self._copies.hits, self._options.selective_hits
            hits.update(hold.names)
            due = [i for i, name in enumerate(hold.names) if hits[name] >= enough]
            self._copies.save([hold.names[i] for i in due], {c: inner.pages[c][due] for c in self._components})
        self._host.touch(names)
        if run := self._host.ready_run(names[n:]):
            hold.host = run
            for page in run:
                page.moves += 1  # it stays until the lease ends, or is loaded
            length = (n + len(run)) * self._page_size
            hold.key = CacheKey(key.ids[:length].copy(), key.namespace, key.spans, length, key.priority)
        return self._lease(hold)

    def load(self, lease: Lease, pages: Mapping[str, Ints]) -> Lease:
        """The inner cache gets the pages as if they had been computed, and a move fills them."""
        hold = self._ended(lease)
        n = len(pages[self._components[0]])
        assert hold.key is not None and 0 < n <= len(hold.host), "load of more than the lease has pending"
        start = len(hold.names)
        rows = {name: np.concatenate((lease.pages[name], pages[name])) for name in self._components}
        inner, remaps = self._inner.insert(hold.inner, hold.key, rows, (start + n) * self._page_size)
        assert not remaps and inner.length == (start + n) * self._page_size, "the device has got them meanwhile"
        run = hold.host[:n]
        names = [*hold.names, *(page.name for page in run)]
        self._copies.name(inner, names, start)
        self._copies.load(run, pages)
        return self._lease(Hold(inner, names))

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        """As the inner cache does; what it has taken is named, and saved if the policy says so."""
        hold = self._ended(lease)
        inner, remaps = self._inner.insert(hold.inner, key, pages, upto)
        start, n = len(hold.names), inner.length // self._page_size
        names = self._page_keys.extended(hold.names, key, n)
        self._copies.name(inner, names, start)
        if self._options.write_policy == "write-through":
            self._copies.save(names[start:], {name: inner.pages[name][start:] for name in self._components})
            self._host.touch(names)
        return self._lease(Hold(inner, names)), remaps

    def release(self, lease: Lease) -> Evicted:
        """Unpin."""
        return self._copies.let_go(self._inner.release(self._ended(lease).inner))

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        """Lengths on the device."""
        return self._inner.peek(keys)

    # --- eviction ---

    def evictable(self, component: str) -> int:
        """Unpinned pages, without those that a copy under way may still need."""
        return max(0, self._inner.evictable(component) - self._moves.busy(component))

    def evict(self, component: str, n: int) -> Evicted:
        """As the inner cache does; what a copy under way holds back does not count. Saved first: pending."""
        wanted, got = min(n, self.evictable(component)), 0
        freed = [Evicted(dict.fromkeys(self._components, EMPTY))]
        saved = 0
        while got < wanted:
            evicted = self._inner.evict(component, wanted - got)
            if self._options.write_policy == "write-back":
                saved += self._copies.save_evicted(evicted)
            freed.append(self._copies.let_go(evicted))
            got = saved + sum(len(one.pages[component]) for one in freed)
        return _joined(freed, saved)

    def reset(self) -> Evicted:
        """Forget device and host. Storage keeps what it has: its names hold as long as the model does."""
        cancelled = self.complete([], [one.id for one in self._moves.take()])
        self._host.clear()
        self._copies.hits.clear()
        return _joined([cancelled, self._copies.let_go(self._inner.reset())])

    # --- copies ---

    def transfers(self) -> list[Transfer]:
        """Copies to start."""
        return self._moves.take()

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        """Outcomes. A load that failed has left rubbish in pages of the inner cache: it forgets all that it has."""
        spoilt = False
        for number, ok in (*((one, True) for one in done), *((one, False) for one in failed)):
            if (move := self._moves.answer(number, ok)) is None:
                continue
            ok = not move.failed
            self._moved[move.kind if ok else f"failed {move.kind}"] += len(move.host)
            for page in move.host:
                # A page that storage did not take is as good as before.
                self._host.moved(page, ok or move.kind == "store")
            if move.kind == "fetch":
                self._copies.fetched()
            if move.kind == "save" and ok and self._storing:
                self._copies.store([page for page in move.host if self._host.get(page.name) is page])
            spoilt |= move.kind == "load" and not ok
        forgotten = [self._copies.let_go(self._inner.reset())] if spoilt else []
        return _joined([self._moves.now_free(), *forgotten])

    def fetch(self, key: CacheKey) -> int:
        """Ask storage for the pages that neither device nor host have, if they are enough to be worth it."""
        if not self._storing:
            return 0
        [length] = self._inner.peek([key])
        names = self._page_keys.extended([], key, _usable(key, self._page_size))[length // self._page_size :]
        missing = [name for name in names if (page := self._host.get(name)) is None or not page.ready]
        if len(missing) * self._page_size < self._options.fetch_tokens:
            return 0
        ids = [number for name in missing if (number := self._copies.fetch(name))]
        self._host.touch(names)
        seconds, per_token = self._options.fetch_wait
        if not ids or not seconds:
            return 0
        now = time.monotonic()
        self._tickets = {ticket: one for ticket, one in self._tickets.items() if one[1] > now}
        self._tickets[ids[-1]] = (ids, now + seconds + per_token * len(ids) * self._page_size)
        return ids[-1]

    def fetching(self, ticket: int) -> bool:
        """Whether any of its pages is under way, and its time is not over."""
        ids, until = self._tickets.get(ticket, ([], 0.0))
        return time.monotonic() < until and any(map(self._moves.under_way, ids))

    def use_storage(self, wanted: bool) -> bool:
        """What is saved on the host while there is no storage is not stored later."""
        there = self._options.storage is not None
        self._storing = wanted and there
        return there

    # --- figures ---

    def events(self) -> list[CacheEvent]:
        """Those of the inner cache: what lies on the device."""
        return self._inner.events()

    def stats(self) -> CacheStats:
        """The inner cache's figures, with pages that wait for a copy, and those of host and storage."""
        stats, moved, used = self._inner.stats(), self._moved, len(self._host)
        cached = {name: n + self._moves.held_back(name) for name, n in stats.cached_pages.items()}
        failed = moved["failed load"] + moved["failed save"]
        sizes = {"pages": self._host.total, "used": used, "bytes": used * self._page_bytes}
        tiers = {"host": {**sizes, "read": moved["load"], "written": moved["save"], "failed": failed}}
        if self._options.storage is not None:
            asked = {"read": moved["fetch"], "misses": moved["failed fetch"]}
            given = {"written": moved["store"], "failed": moved["failed store"]}
            tiers["storage"] = {"attached": int(self._storing), **asked, **given}
        return replace(stats, cached_pages=cached, tiers=tiers)

    def outline(self, limit: int, tokens: int) -> Sequence[Prefix]:
        """The inner cache's; what only slower tiers have is not among it."""
        prefixes = self._inner.outline(limit, tokens)
        return [replace(one, tiers={"host": self._copies.on_host(one.pages)}) for one in prefixes]

    def close(self) -> None:
        """Close the inner cache. The store is the mover's."""
        self._inner.close()

    # --- inside ---

    def _lease(self, hold: Hold) -> Lease:
        """A lease that begins."""
        self._moves.pin(hold.inner.pages, 1)
        return Lease(hold.inner.length, hold.inner.pages, hold, len(hold.host) * self._page_size)

    def _ended(self, lease: Lease) -> Hold:
        """What a lease that ends here held."""
        hold = lease.token
        assert isinstance(hold, Hold)
        self._moves.pin(hold.inner.pages, -1)
        for page in hold.host:
            self._host.moved(page, ok=True)
        return hold


def _usable(key: CacheKey, page_size: int) -> int:
    """Whole pages of the key that may be used."""
    return max(0, min(len(key.ids), key.limit)) // page_size


def _joined(parts: Sequence[Evicted], pending: int = 0) -> Evicted:
    """Several answers as one."""
    return Evicted({name: np.concatenate([one.pages[name] for one in parts]) for name in parts[0].pages}, pending)
