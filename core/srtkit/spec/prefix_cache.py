"""The prefix cache contract, `prefix_cache/1.1`: token ids and namespaces → pages.

A cache knows no tensor and no torch and never owns the allocator: it holds page ids the scheduler gave
it, lends them out pinned, and gives them back on eviction. A page id in the cache stands for its whole
prefix. Lengths are tokens; pages of a component are int32 arrays in order of position, 0 for no page: a window
component has none before `Component.first_page`; a slot component has the one snapshot at the end, or nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from srtkit.spec.capabilities import NOT_DECLARED, Answer, Descriptor
from srtkit.spec.kv import Component
from srtkit.spec.step_plan import Ints

if TYPE_CHECKING:
    from srtkit.spec.tiers import MoverBuild, TierMover


@dataclass(frozen=True, eq=False)
class CacheKey:
    """What identifies a prefix. Two keys agree on a range only if ids, namespace and spans agree there.

    `ids` int32 [n], a view valid during the call; `namespace` holds adapter and its version, salt, weight
    version; `spans` (start, stop, digest) replace the identity of those positions (images, prompt
    embeddings) and do not overlap; `limit` is the longest length the caller can use. `priority` is a hint
    that identifies nothing: pages of a higher one should stay longer.
    """

    ids: Ints
    namespace: bytes = b""
    spans: tuple[tuple[int, int, bytes], ...] = ()
    limit: int = 2**31 - 1
    priority: int = 0


@dataclass(frozen=True)
class Remap:
    """A page the cache already had: at `index` of the component, `mine` stays the caller's, `theirs` serves."""

    component: str
    index: int
    mine: int
    theirs: int


@dataclass(frozen=True, eq=False)
class Lease:
    """A pinned prefix. `length` tokens are usable now; `pages` per component cover exactly them.

    `pending` tokens more lie in slower tiers. Valid until `release`; `token` is the cache's own handle.
    Pinned are the pages named, no others: those before a window may be evicted meanwhile.
    `snapshot_at`, a hint: lengths beyond `length` at which a snapshot is wanted, ascending, in whole pages.
    """

    length: int
    pages: Mapping[str, Ints]
    token: object
    pending: int = 0
    snapshot_at: tuple[int, ...] = ()


@dataclass(frozen=True)
class Evicted:
    """Pages given back, per component; `pending` counts pages that return through an ack later."""

    pages: Mapping[str, Ints]
    pending: int = 0


@dataclass(frozen=True)
class Transfer:
    """A copy a cache asks for between the device and a tier. Source pages stay pinned until the ack.

    `there` are pages of the tier, or store keys; `needed_by` is seconds from now, 0 for no deadline.
    """

    id: int
    component: str
    direction: Literal["out", "in"]
    tier: str
    here: Ints
    there: tuple[bytes, ...] | Ints
    needed_by: float = 0.0


@dataclass(frozen=True)
class CacheEvent:
    """What changed, for cache-aware routing: chained content hashes of whole pages."""

    kind: Literal["stored", "removed", "cleared"]
    hashes: tuple[int, ...] = ()
    parent: int = 0
    namespace: bytes = b""


@dataclass(frozen=True)
class CacheStats:
    """Figures for metrics. Pages are per component. `extra`: whatever else there is to know, as plain data.

    `tiers` are those below the device. As they stand: `pages` (all that there are), `used`, `bytes` of these,
    `attached` (1 or 0). Pages counted since the start: `read` (brought nearer to the device), `misses` (asked for in
    vain), `written`, `failed`. A tier leaves out what it does not know.
    """

    cached_pages: Mapping[str, int]
    pinned_pages: Mapping[str, int]
    entries: int
    extra: Mapping[str, Any] = field(default_factory=dict)
    tiers: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Prefix:
    """A prefix that is kept, for people to look at; what it extends, its `parent`, is an earlier one of the outline.

    `parent` is that one's place, -1 for none. `length` in tokens, the parent's included; `ids` are the first of its
    own, negative where a span stands; `pages` by component its own on the device, 0 for those that are gone. `hits`:
    matches that found it; `pins`: leases that hold it; `tiers`: how many of its own pages are in each below the device.
    """

    parent: int
    length: int
    ids: tuple[int, ...]
    pages: Mapping[str, Ints]
    namespace: bytes
    hits: int
    pins: int
    tiers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CacheCapabilities:
    """What a cache can do. `page_sizes` it takes; `reaches` of components it understands."""

    page_sizes: range
    reaches: frozenset[str]
    shares: Answer = NOT_DECLARED
    tiers: Answer = NOT_DECLARED
    events: Answer = NOT_DECLARED


class PrefixCache(ABC):
    """One cache per scheduler, single-threaded. Every method is called between steps."""

    @abstractmethod
    def match(self, key: CacheKey) -> Lease:
        """The longest prefix usable by all components at once, at most `key.limit`, pinned.

        The length is a multiple of the page size (0 when nothing is cached: the lease is still valid). A window
        component needs the pages from `first_page(length)` on, a slot component a snapshot of exactly `length` tokens.
        """

    @abstractmethod
    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        """Lengths that `match` would give. No pin, no change of recency."""

    @abstractmethod
    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        """Offer the cache the pages of the first `upto` tokens (all committed); it takes whole pages, or none.

        `pages`, views valid during the call, start at position 0 and cover at least `upto`, which is not
        below `lease.length`; the lease's own pages are included. Returns a lease in place of `lease`
        (which ends), at least as long, and the pages the cache already had. The new lease states what the
        cache now holds: below its length a page of the caller belongs to the cache from here on unless a
        `Remap` names it. Those named, and every page from that length on, stay the caller's. A lease that is not
        longer than before took nothing.

        Of a window component the caller offers 0 for pages that it has let go; the cache takes those that it lacks.
        Of a slot component it offers the snapshot after exactly `upto` tokens, or nothing; it becomes the cache's
        if the new lease reaches `upto` and no `Remap` names it. The new lease need not pin a snapshot.
        """

    @abstractmethod
    def release(self, lease: Lease) -> Evicted:
        """Unpin. A lease is released exactly once.

        Returns pages that become free with it: those a `reset` had detached while they were pinned.
        """

    @abstractmethod
    def evictable(self, component: str) -> int:
        """Pages that `evict` could free now. O(1)."""

    @abstractmethod
    def evict(self, component: str, n: int) -> Evicted:
        """Free at least min(n, evictable) pages of the component; other components may lose pages with them."""

    @abstractmethod
    def transfers(self) -> list[Transfer]:
        """Copies to start with the next step; each is returned once."""

    @abstractmethod
    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        """Outcome of transfers, by id. Returns pages that became free."""

    @abstractmethod
    def events(self) -> list[CacheEvent]:
        """What changed since the last call."""

    @abstractmethod
    def reset(self) -> Evicted:
        """Forget everything. Returns the pages that nobody pins; the others come back from `release`.

        A lease from before stays valid until released, but `insert` takes nothing more under it.
        """

    @abstractmethod
    def stats(self) -> CacheStats:
        """Figures for metrics. Asked about twice a second."""

    def outline(self, limit: int, tokens: int) -> Sequence[Prefix]:
        """Up to `limit` prefixes, those used most, with `tokens` of their ids; parents first. Changes nothing.

        None from a cache that cannot say.
        """
        return ()

    def use_storage(self, wanted: bool) -> bool:
        """Go on with storage, or without: what is under way ends, and nothing more is asked of it or given to it.

        Whether there is a storage to go on with or without.
        """
        return False

    def load(self, lease: Lease, pages: Mapping[str, Ints]) -> Lease:
        """Bring the first of the lease's `pending` tokens into `pages`, whole pages of the caller's, by transfers.

        They are the cache's from here on. Returns a lease in place of `lease` (which ends), longer by them. They may
        be read by steps launched with or after the transfers; what was computed from them counts only when these are
        done. If one fails, the cache forgets what it holds, as with `reset`, and `complete` returns what is free.
        Not called where nothing is pending.
        """
        raise NotImplementedError("a lease has tokens pending, and the cache cannot load them")

    def fetch(self, key: CacheKey) -> int:
        """Begin to bring what only storage has of a prefix nearer. A ticket for `fetching`; 0 if there is no need."""
        return 0

    def fetching(self, ticket: int) -> bool:
        """Whether the sequence of that ticket had better wait: what it fetches is coming, and its time is not over."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Release files and connections. Idempotent."""


@dataclass(frozen=True)
class PrefixCacheBuild:
    """What core gives a cache at build. `identity` digests model, layout and shares, for store keys.

    `page_bytes` of a page over all layers and components, on one rank.
    """

    page_size: int
    components: tuple[Component, ...]
    options: BaseModel
    identity: bytes = b""
    needs: Mapping[str, object] | None = None
    page_bytes: int = 0


def no_bytes(options: BaseModel) -> int:
    """The default of `host_bytes`. A name, since descriptors travel between processes."""
    return 0


@dataclass(frozen=True, kw_only=True)
class PrefixCacheDescriptor(Descriptor):
    """What a plugin's hook returns. With tiers, `mover` gives what moves their bytes.

    `host_bytes(options)`: memory that it takes on the host of each rank, for the memory plan.
    """

    capabilities: Callable[[BaseModel], CacheCapabilities]
    build: Callable[[PrefixCacheBuild], PrefixCache]
    mover: Callable[[MoverBuild], TierMover] | None = None
    host_bytes: Callable[[BaseModel], int] = no_bytes
