"""The contract over the C++ tree: keys and pages to bytes, results to arrays. Knows components by name.

Every decision is the library's. One call of the contract is one call of the library (`peek`: one a key; figures are
read from memory that both see).
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Mapping, Sequence
from ctypes import ArgumentError, c_int32, c_void_p
from typing import get_args

import numpy as np

from srtkit.spec.errors import OutOfMemory, Unsupported
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
from srtkit_plugin_cache_radix_native import PART, RadixOptions
from srtkit_plugin_cache_radix_native.events import read_events
from srtkit_plugin_cache_radix_native.library import NO_MEMORY, REFUSALS, State, load

POLICIES: tuple[str, ...] = get_args(RadixOptions.model_fields["eviction"].annotation)
"""In the order of `enum Policy`."""
ALL_BITS = 2**64 - 1
INT32 = np.dtype(np.int32)


class QuickLease(Lease):
    """A `Lease` made in half the time, which tells beside calls this short: a frozen dataclass sets field by field."""

    def __init__(
        self,
        length: int,
        pages: Mapping[str, Ints],
        token: object,
        pending: int = 0,
        snapshot_at: tuple[int, ...] = (),
    ) -> None:
        fields = self.__dict__
        fields["length"] = length
        fields["pages"] = pages
        fields["token"] = token
        fields["pending"] = pending
        fields["snapshot_at"] = snapshot_at


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
        self._c = load()
        policy = POLICIES.index(build.options.eviction)
        made = self._c.new(build.page_size, len(self._names), policy, build.options.events, hash_mask)
        if made is None:
            raise OutOfMemory(PART, "there is no memory for an empty cache")
        self._handle = c_void_p(made)
        self._free = weakref.finalize(self, self._c.free, self._handle)
        self._free.atexit = False  # a thread may still be at work; the system takes the memory back
        self._state: State = self._c.state(self._handle).contents
        self._out = self._map_out()
        nothing = np.empty(0, np.int32)
        nothing.flags.writeable = False
        self._nothing = dict.fromkeys(self._names, nothing)
        self._none_evicted = Evicted(self._nothing)

    def match(self, key: CacheKey) -> Lease:
        """The longest prefix in whole pages, pinned. Splits a node that is shared only in part."""
        length = len(key.ids)
        if key.limit < length:
            length = max(key.limit, 0)
        n = self._c.match(self._handle, _bytes_of(key.ids, length), length, _about(key, length))
        if n < 0:
            _refuse(n)
        return QuickLease(n * self._page_size, self._pages(n), self._state.lease)

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        """Lengths that `match` would give; changes nothing."""
        lengths = []
        for key in keys:
            length = min(len(key.ids), max(key.limit, 0))
            n = self._c.peek(self._handle, _bytes_of(key.ids, length), length, _about(key, length))
            if n < 0:
                _refuse(n)
            lengths.append(n * self._page_size)
        return lengths

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        """Take the whole pages below `upto`; under a lease from before the last reset, none."""
        count = upto // self._page_size
        length = count * self._page_size
        ids = _bytes_of(key.ids, length)
        mine = self._flat(pages, count)
        number = lease.token
        try:
            n = self._c.insert(self._handle, number, ids, _about(key, length), mine, count)
        except ArgumentError:
            raise AssertionError("this lease is of another cache") from None
        if n < 0:
            _refuse(n)
        state = self._state
        remaps = self._remaps(n) if state.n_remaps else []
        if state.lease == number:
            return lease, remaps
        return QuickLease(n * self._page_size, self._pages(n), state.lease), remaps

    def release(self, lease: Lease) -> Evicted:
        """Unpin; gives back the pages that a reset left to this lease."""
        try:
            return self._evicted(self._c.release(self._handle, lease.token))
        except ArgumentError:
            raise AssertionError("this lease is of another cache") from None

    def evictable(self, component: str) -> int:
        """Pages of every component that no lease covers."""
        assert component in self._names, f"no component {component}"
        return int(self._state.evictable)

    def evict(self, component: str, n: int) -> Evicted:
        """Free min(n, evictable) pages of every component, from the ends of the leaves that go first."""
        assert component in self._names, f"no component {component}"
        return self._evicted(self._c.evict(self._handle, n))

    def transfers(self) -> list[Transfer]:
        """None: there are no tiers."""
        return []

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        """Nothing was asked for, so nothing can have ended."""
        assert not done and not failed, "an ack for a transfer that was never asked for"
        return self._none_evicted

    def events(self) -> list[CacheEvent]:
        """What changed since the last call; nothing unless the option `events` is set."""
        refusal = self._c.take_events(self._handle)
        if refusal < 0:
            _refuse(refusal)
        return read_events(self._state)

    def reset(self) -> Evicted:
        """Forget everything. Leases from before keep their pages until released and grow no more."""
        return self._evicted(self._c.reset(self._handle))

    def stats(self) -> CacheStats:
        """Figures; all components have equally many pages."""
        state = self._state
        return CacheStats(
            cached_pages=dict.fromkeys(self._names, state.evictable + state.pinned),
            pinned_pages=dict.fromkeys(self._names, state.pinned),
            entries=state.entries,
        )

    def close(self) -> None:
        """Free the tree. What would read or change it is refused afterwards; figures are 0."""
        self._handle = c_void_p()
        self._state = State()
        self._out = memoryview(b"").cast("i")
        self._free()

    def _flat(self, pages: Mapping[str, Ints], count: int) -> bytes:
        """The first `count` pages as [count, components]."""
        if len(self._names) == 1:
            return _bytes_of(pages[self._names[0]], count)
        columns = [np.frombuffer(_bytes_of(pages[name], count), INT32) for name in self._names]
        return np.stack(columns, axis=1).tobytes()

    def _map_out(self) -> memoryview[int]:
        """C's memory for results, which it replaces when it needs more."""
        array = (c_int32 * self._state.out_size).from_address(self._state.out)
        self._out = memoryview(array).cast("B").cast("i")
        return self._out

    def _pages(self, n: int) -> Mapping[str, Ints]:
        """The first `n` pages of the result, copied; read-only."""
        if n == 0:
            return self._nothing
        out = self._out if len(self._out) == self._state.out_size else self._map_out()
        names = self._names
        if len(names) == 1:
            return {names[0]: np.frombuffer(out[:n].tobytes(), INT32)}
        rows = np.frombuffer(out[: n * len(names)].tobytes(), INT32).reshape(n, -1).T.copy()
        rows.setflags(write=False)
        return dict(zip(names, rows, strict=True))

    def _remaps(self, n: int) -> list[Remap]:
        """Where the caller's pages are not the cache's: they follow the `n` pages."""
        out = self._out if len(self._out) == self._state.out_size else self._map_out()
        start = n * len(self._names)
        found = out[start : start + 4 * self._state.n_remaps].tolist()
        return [Remap(self._names[found[i]], *found[i + 1 : i + 4]) for i in range(0, len(found), 4)]

    def _evicted(self, n: int) -> Evicted:
        if n < 0:
            _refuse(n)
        return Evicted(self._pages(n)) if n else self._none_evicted


def _bytes_of(values: Ints, n: int) -> bytes:
    """The first `n` of an int32 array; C would read past the end of fewer."""
    data = values[:n].tobytes()
    if len(data) != 4 * n:
        raise AssertionError("ids or pages are fewer than the call says, or not int32")
    return data


def _about(key: CacheKey, length: int) -> bytes | None:
    """What is rare about the first `length` tokens of a key, as `class Key` in keys.h reads it; None for nothing."""
    if not (key.namespace or key.priority or key.spans):
        return None
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


def _refuse(code: int) -> None:
    if code == NO_MEMORY:
        raise OutOfMemory(PART, "there is no memory for more of the prefix cache's nodes")
    raise AssertionError(REFUSALS[code])


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
