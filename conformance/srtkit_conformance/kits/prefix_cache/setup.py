"""Builds the cache under test in small: page size, components, and a caller around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from srtkit.spec.kv import FULL, Component
from srtkit.spec.prefix_cache import CacheCapabilities, PrefixCache, PrefixCacheBuild
from srtkit_conformance.check import expect
from srtkit_conformance.kits.needs import needs_of
from srtkit_conformance.kits.prefix_cache.caller import Caller
from srtkit_conformance.target import Target

BOTH = (FULL, Component("indexer"))


def declared(target: Target) -> CacheCapabilities:
    """What the cache says of itself under the target's options."""
    capabilities: CacheCapabilities = target.descriptor.capabilities(target.options)
    return capabilities


def page_of(target: Target) -> int:
    """The page size most checks use: 4, else the declared one nearest to it."""
    sizes = declared(target).page_sizes
    expect(len(sizes) > 0, "declares no page size at all", observed=sizes)
    return min(sizes, key=lambda size: (abs(size - 4), -size))


def new_cache(target: Target, page_size: int, components: Sequence[Component]) -> PrefixCache:
    """An empty cache. Raises what its build raises."""
    build = PrefixCacheBuild(page_size, tuple(components), target.options)
    needs = needs_of(target.descriptor, target.options, {"prefix_cache": build})
    cache: PrefixCache = target.descriptor.build(replace(build, needs=needs))
    return cache


def new_caller(
    target: Target, components: Sequence[Component] = (FULL,), page_size: int = 0, total: int = 60
) -> Caller:
    """A caller with an empty cache."""
    page = page_size or page_of(target)
    return Caller(new_cache(target, page, components), page, components, total)
