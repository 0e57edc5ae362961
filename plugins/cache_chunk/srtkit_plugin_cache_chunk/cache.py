"""A prefix cache that caches nothing: the baseline, and the choice for models whose pages cannot be shared.

Chunked prefill works as with any other cache: a sequence goes on from its own pages, which it always keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from srtkit.spec.errors import Unsupported
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
from srtkit.spec.step_plan import EMPTY, Ints
from srtkit_plugin_cache_chunk import PAGE_SIZES


class Token:
    """What a lease stands for: only whether it has ended."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = True


class ChunkCache(PrefixCache):
    """Matches nothing, takes nothing, owes nothing."""

    def __init__(self, build: PrefixCacheBuild) -> None:
        """Raises `Unsupported` for a page size that is not declared."""
        if build.page_size not in PAGE_SIZES:
            cause = f"page size {build.page_size} is not in {PAGE_SIZES[0]} … {PAGE_SIZES[-1]}"
            raise Unsupported("prefix_cache:chunk", cause, "change memory.page_size")
        self._names = tuple(component.name for component in build.components)
        self._nothing: Mapping[str, Ints] = dict.fromkeys(self._names, EMPTY)

    def match(self, key: CacheKey) -> Lease:
        """A lease of length 0."""
        return Lease(0, self._nothing, Token())

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        """0 for every key."""
        return [0] * len(keys)

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        """A lease of length 0 again: every page stays the caller's."""
        _end(lease)
        return self.match(key), []

    def release(self, lease: Lease) -> Evicted:
        """Ends the lease; no page was pinned."""
        _end(lease)
        return Evicted(self._nothing)

    def evictable(self, component: str) -> int:
        """0."""
        assert component in self._names, f"no component {component}"
        return 0

    def evict(self, component: str, n: int) -> Evicted:
        """Nothing to free."""
        assert component in self._names, f"no component {component}"
        return Evicted(self._nothing)

    def transfers(self) -> list[Transfer]:
        """None: there are no tiers."""
        return []

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        """Nothing was asked for, so nothing can have ended."""
        assert not done and not failed, "an ack for a transfer that was never asked for"
        return Evicted(self._nothing)

    def events(self) -> list[CacheEvent]:
        """None: nothing ever changes."""
        return []

    def reset(self) -> Evicted:
        """Nothing to forget."""
        return Evicted(self._nothing)

    def stats(self) -> CacheStats:
        """All zero."""
        none = dict.fromkeys(self._names, 0)
        return CacheStats(cached_pages=none, pinned_pages=none, entries=0)

    def close(self) -> None:
        """Nothing to release."""


def _end(lease: Lease) -> None:
    token = lease.token
    assert isinstance(token, Token) and token.open, "this lease has ended already"
    token.open = False
