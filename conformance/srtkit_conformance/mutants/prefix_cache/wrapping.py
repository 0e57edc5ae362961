"""How a wrong cache is made: the right one inside a wrapper that changes one answer, or a second implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel

from srtkit.spec.errors import Unsupported
from srtkit.spec.prefix_cache import (
    CacheCapabilities,
    CacheEvent,
    CacheKey,
    CacheStats,
    Evicted,
    Lease,
    Prefix,
    PrefixCache,
    PrefixCacheBuild,
    PrefixCacheDescriptor,
    Remap,
    Transfer,
)
from srtkit.spec.step_plan import Ints
from srtkit_conformance.mutants.prefix_cache.block_cache import BlockCache
from srtkit_conformance.mutants.prefix_cache.mixed_cache import MixedCache

Make = Callable[[PrefixCacheDescriptor], PrefixCacheDescriptor]


class Wrapped(PrefixCache):
    """Hands every call to `inner`; a fault overrides one. A class at module level, so that it can be pickled."""

    def __init__(self, inner: PrefixCache, build: PrefixCacheBuild) -> None:
        self.inner = inner
        self.page_size = build.page_size

    def match(self, key: CacheKey) -> Lease:
        return self.inner.match(key)

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        return self.inner.peek(keys)

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        return self.inner.insert(lease, key, pages, upto)

    def release(self, lease: Lease) -> Evicted:
        return self.inner.release(lease)

    def evictable(self, component: str) -> int:
        return self.inner.evictable(component)

    def evict(self, component: str, n: int) -> Evicted:
        return self.inner.evict(component, n)

    def transfers(self) -> list[Transfer]:
        return self.inner.transfers()

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        return self.inner.complete(done, failed)

    def events(self) -> list[CacheEvent]:
        return self.inner.events()

    def reset(self) -> Evicted:
        return self.inner.reset()

    def stats(self) -> CacheStats:
        return self.inner.stats()

    def outline(self, limit: int, tokens: int) -> Sequence[Prefix]:
        return self.inner.outline(limit, tokens)

    def use_storage(self, wanted: bool) -> bool:
        return self.inner.use_storage(wanted)

    def load(self, lease: Lease, pages: Mapping[str, Ints]) -> Lease:
        return self.inner.load(lease, pages)

    def fetch(self, key: CacheKey) -> int:
        return self.inner.fetch(key)

    def fetching(self, ticket: int) -> bool:
        return self.inner.fetching(ticket)

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class BuildAround:
    """A build function: what `inner` builds, inside a wrapper."""

    inner: Callable[[PrefixCacheBuild], PrefixCache]
    wrapper: Callable[[PrefixCache, PrefixCacheBuild], PrefixCache]

    def __call__(self, build: PrefixCacheBuild) -> PrefixCache:
        return self.wrapper(self.inner(build), build)


@dataclass(frozen=True)
class BuildAnother:
    """A build function: another cache, for what the wrapped plugin agrees to build."""

    inner: Callable[[PrefixCacheBuild], PrefixCache]
    another: Callable[[PrefixCacheBuild], PrefixCache]

    def __call__(self, build: PrefixCacheBuild) -> PrefixCache:
        self.inner(build).close()
        return self.another(build)


def around(wrapper: type[Wrapped]) -> Make:
    """The plugin's cache inside `wrapper`."""
    return lambda descriptor: replace(descriptor, build=BuildAround(descriptor.build, wrapper))


@dataclass(frozen=True)
class Paged:
    """A descriptor's functions without components beside those of reach all."""

    declared: Callable[[BaseModel], CacheCapabilities]
    inner: Callable[[PrefixCacheBuild], PrefixCache]

    def capabilities(self, options: BaseModel) -> CacheCapabilities:
        """What the plugin declares, less the reaches."""
        return replace(self.declared(options), reaches=frozenset({"all"}))

    def build(self, build: PrefixCacheBuild) -> PrefixCache:
        """Raises `Unsupported` for any other reach."""
        for component in build.components:
            if component.reach != "all":
                raise Unsupported("prefix_cache:blocks", f"component {component.name} has reach {component.reach}")
        return self.inner(build)


def another(cache: type[BlockCache | MixedCache]) -> Make:
    """Another cache in place of the plugin's; its options are ignored. A block cache has no windows and snapshots."""

    def make(descriptor: PrefixCacheDescriptor) -> PrefixCacheDescriptor:
        inner = descriptor.build
        if issubclass(cache, BlockCache):
            paged = Paged(descriptor.capabilities, descriptor.build)
            descriptor, inner = replace(descriptor, capabilities=paged.capabilities), paged.build
        return replace(descriptor, build=BuildAnother(inner, cache))

    return make
