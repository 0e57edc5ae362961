"""The contract over the C++ tree: what is rare about keys to bytes, results to arrays. Knows components by name.

Every decision is the library's. One call of the contract is one call of the library (`peek`: one a key).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import numpy as np

from srtkit.spec.errors import OutOfMemory, Unsupported
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
from srtkit.spec.step_plan import Ints
from srtkit_plugin_cache_radix_native import PART, RadixOptions
from srtkit_plugin_cache_radix_native.events import read_events
from srtkit_plugin_cache_radix_native.library import load

POLICIES: tuple[str, ...] = get_args(RadixOptions.model_fields["eviction"].annotation)
"""In the order of `enum Policy`."""
ALL_BITS = 2**64 - 1
INT32 = np.dtype(np.int32)
REMAP = struct.Struct("4i")
"""Component, index, mine, theirs."""


class NativeRadixCache(PrefixCache):
    """Pages of equal prefixes are shared by everybody who has the same tokens, spans and namespace.

    A lease's token is its number in C++, which no other cache of this process uses.
    """

    def __init__(self, build: PrefixCacheBuild, hash_mask: int = ALL_BITS) -> None:
        """Raises `Unsupported` for a page size or a component it cannot keep. `hash_mask`: see tree.h."""
        assert isinstance(build.options, RadixOptions)
        _refuse_unknown(build)
        self._page_size = build.page_size
        self._names = tuple(component.name for component in build.components)
        self._only = self._names[0] if len(self._names) == 1 else None
        policy = POLICIES.index(build.options.eviction)
        try:
            self._c = load().Cache(build.page_size, len(self._names), policy, build.options.events, hash_mask)
        except MemoryError:
            raise _no_memory() from None
        nothing = np.empty(0, np.int32)
        nothing.flags.writeable = False
        self._nothing = dict.fromkeys(self._names, nothing)
        self._none_evicted = Evicted(self._nothing)

    def match(self, key: CacheKey) -> Lease:
        """The longest prefix in whole pages, pinned. Splits a node that is shared only in part."""
        length = len(key.ids)
        if key.limit < length:
            length = max(key.limit, 0)
        about = _about(key, length) if key.namespace or key.priority or key.spans else None
        try:
            n, pages, number = self._c.match(key.ids, length, about)
        except MemoryError:
            raise _no_memory() from None
        return _lease(n * self._page_size, self._pages(pages), number)

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        """Lengths that `match` would give; changes nothing."""
        lengths = []
        for key in keys:
            length = min(len(key.ids), max(key.limit, 0))
            about = _about(key, length) if key.namespace or key.priority or key.spans else None
            try:
                lengths.append(self._c.peek(key.ids, length, about) * self._page_size)
            except MemoryError:
                raise _no_memory() from None
        return lengths

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        """Take the whole pages below `upto`; under a lease from before the last reset, none."""
        count = upto // self._page_size
        about = _about(key, count * self._page_size) if key.namespace or key.priority or key.spans else None
        mine = pages[self._only] if self._only else self._side_by_side(pages, count)
        try:
            n, held, number, remaps = self._c.insert(lease.token, key.ids, about, mine, count)
        except MemoryError:
            raise _no_memory() from None
        named = self._remaps(remaps) if remaps else []
        if number == lease.token:
            return lease, named
        return _lease(n * self._page_size, self._pages(held), number), named

    def release(self, lease: Lease) -> Evicted:
        """Unpin; gives back the pages that a reset left to this lease."""
        return self._evicted(self._c.release, lease.token)

    def evictable(self, component: str) -> int:
        """Pages of every component that no lease covers."""
        assert component in self._names, f"no component {component}"
        evictable: int = self._c.evictable()
        return evictable

    def evict(self, component: str, n: int) -> Evicted:
        """Free min(n, evictable) pages of every component, from the ends of the leaves that go first."""
        assert component in self._names, f"no component {component}"
        return self._evicted(self._c.evict, n)

    def transfers(self) -> list[Transfer]:
        """None: there are no tiers."""
        return []

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        """Nothing was asked for, so nothing can have ended."""
        assert not done and not failed, "an ack for a transfer that was never asked for"
        return self._none_evicted

    def events(self) -> list[CacheEvent]:
        """What changed since the last call; nothing unless the option `events` is set."""
        return read_events(*self._c.take_events())

    def reset(self) -> Evicted:
        """Forget everything. Leases from before keep their pages until released and grow no more."""
        return self._evicted(self._c.reset)

    def stats(self) -> CacheStats:
        """Figures; all components have equally many pages."""
        evictable, pinned, nodes = self._c.figures()
        return CacheStats(
            cached_pages=dict.fromkeys(self._names, evictable + pinned),
            pinned_pages=dict.fromkeys(self._names, pinned),
            entries=nodes,
        )

    def outline(self, limit: int, tokens: int) -> Sequence[Prefix]:
        """The nodes of the tree that were matched most often, then those used last."""
        return [
            Prefix(parent, length, tuple(np.frombuffer(ids, INT32).tolist()), self._pages(pages), namespace, hits, pins)
            for parent, length, ids, pages, namespace, hits, pins in self._c.outline(limit, tokens)
        ]

    def close(self) -> None:
        """Free the tree. What would read or change it is refused afterwards; figures are 0."""
        self._c.close()

    def _side_by_side(self, pages: Mapping[str, Ints], count: int) -> Ints:
        """The first `count` pages as [count, components]."""
        columns = [pages[name][:count] for name in self._names]
        assert all(len(column) == count for column in columns), "pages are fewer than the call says"
        return np.stack(columns, axis=1)

    def _pages(self, pages: bytes) -> Mapping[str, Ints]:
        """Pages by component; read-only."""
        if not pages:
            return self._nothing
        if self._only:
            return {self._only: np.frombuffer(pages, INT32)}
        rows = np.frombuffer(pages, INT32).reshape(-1, len(self._names)).T.copy()
        rows.setflags(write=False)
        return dict(zip(self._names, rows, strict=True))

    def _remaps(self, remaps: bytes) -> list[Remap]:
        """Where the caller's pages are not the cache's."""
        names = self._names
        return [_remap(names[place], index, mine, theirs) for place, index, mine, theirs in REMAP.iter_unpack(remaps)]

    def _evicted(self, call: Callable[..., bytes], *given: object) -> Evicted:
        """What a call gives back."""
        try:
            pages = call(*given)
        except MemoryError:
            raise _no_memory() from None
        return Evicted(self._pages(pages)) if pages else self._none_evicted


# A frozen dataclass sets field by field, which takes a third of such a call: these two are filled at once.


def _lease(length: int, pages: Mapping[str, Ints], token: object) -> Lease:
    """`Lease(length, pages, token)`; the other fields' defaults are the class's."""
    made = object.__new__(Lease)
    fields = made.__dict__
    fields["length"] = length
    fields["pages"] = pages
    fields["token"] = token
    return made


def _remap(component: str, index: int, mine: int, theirs: int) -> Remap:
    """`Remap(component, index, mine, theirs)`."""
    made = object.__new__(Remap)
    fields = made.__dict__
    fields["component"] = component
    fields["index"] = index
    fields["mine"] = mine
    fields["theirs"] = theirs
    return made


def _about(key: CacheKey, length: int) -> bytes:
    """What is rare about the first `length` tokens of a key, as `class Key` in keys.h reads it."""
    spans = sorted(key.spans)
    after = 0
    for start, stop, _ in spans:
        if not after <= start < stop:
            raise AssertionError("spans of a key are empty or overlap")
        after = stop
    spans = [span for span in spans if span[0] < length]
    numbers = [number for start, stop, digest in spans for number in (start, stop, len(digest))]
    head = struct.pack(f"{3 + len(numbers)}q", key.priority, len(key.namespace), len(spans), *numbers)
    return b"".join((head, key.namespace, *(digest for _, _, digest in spans)))


def _no_memory() -> OutOfMemory:
    return OutOfMemory(PART, "there is no memory for more of the prefix cache's nodes")


def _refuse_unknown(build: PrefixCacheBuild) -> None:
    """Raise `Unsupported` for what the tree does not model."""
    if not 1 <= build.page_size <= 256:
        raise Unsupported(PART, f"page size {build.page_size} is not in 1 … 256", "change memory.page_size")
    for component in build.components:
        what = f"component {component.name}"
        if component.kind != "paged" or component.reach != "all":
            cause = f"{what} is {component.kind} with reach {component.reach}; it keeps paged components of reach all"
            raise Unsupported(PART, cause, 'use another cache, e.g. [prefix_cache] use = "chunk"')
        if component.lookahead:
            # Its pages depend on the next page's tokens, which the tree's keys do not cover.
            cause = f"{what} looks {component.lookahead} tokens ahead"
            raise Unsupported(PART, cause, 'use another cache, e.g. [prefix_cache] use = "chunk"')
