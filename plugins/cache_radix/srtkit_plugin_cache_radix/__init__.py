"""The radix prefix cache: descriptor and options. Imports nothing but the contract.

The tree is imported by `build`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.capabilities import YES, No
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.prefix_cache import CacheCapabilities, PrefixCache, PrefixCacheBuild, PrefixCacheDescriptor


class RadixOptions(BaseModel):
    """`[prefix_cache.options]`: `eviction` says which unpinned pages go first, `events` records changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    eviction: Literal["lru", "lfu", "fifo", "slru", "priority"] = Field(
        "lru", description="which unpinned pages go first: lru, lfu, fifo, slru, priority"
    )
    events: bool = Field(False, description="record stored, removed and cleared pages for cache-aware routing")


def capabilities(options: BaseModel) -> CacheCapabilities:
    """Shares prefixes of paged components; has no tiers."""
    assert isinstance(options, RadixOptions)
    return CacheCapabilities(
        page_sizes=range(1, 257),
        reaches=frozenset({"all", "window"}),
        shares=YES,
        tiers=No("keeps pages on the device only"),
        events=YES if options.events else No("switched off; set prefix_cache.options.events = true"),
    )


def build(args: PrefixCacheBuild) -> PrefixCache:
    """An empty cache. Raises `Unsupported` for a page size or component that `capabilities` does not name."""
    from srtkit_plugin_cache_radix.cache import RadixCache

    assert isinstance(args.options, RadixOptions)
    return RadixCache(args, args.options)


@hookimpl
def srtkit_prefix_cache() -> PrefixCacheDescriptor:
    """Offers the cache `radix`."""
    return PrefixCacheDescriptor(contract="1.0", options=RadixOptions, capabilities=capabilities, build=build)
