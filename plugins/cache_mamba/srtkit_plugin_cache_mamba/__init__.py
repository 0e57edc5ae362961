"""The prefix cache for models with recurrent layers: descriptor and options. Imports nothing but the contract.

The cache is imported by `build`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.capabilities import YES, No
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.prefix_cache import CacheCapabilities, PrefixCache, PrefixCacheBuild, PrefixCacheDescriptor


class MambaOptions(BaseModel):
    """`[prefix_cache.options.mamba]`: eviction as of radix; `every` says where else states are kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    eviction: Literal["lru", "lfu", "fifo", "slru", "priority"] = Field(
        "lru", description="which unpinned pages and states go first: lru, lfu, fifo, slru, priority"
    )
    events: bool = Field(False, description="record stored, removed and cleared pages for cache-aware routing")
    every: int = Field(
        256, ge=0, description="tokens between two states that are kept while a sequence runs; 0: at its branches only"
    )


def capabilities(options: BaseModel) -> CacheCapabilities:
    """Shares prefixes of every kind of component; has no tiers."""
    assert isinstance(options, MambaOptions)
    return CacheCapabilities(
        page_sizes=range(1, 257),
        reaches=frozenset({"all", "window", "snapshot"}),
        shares=YES,
        tiers=No("keeps pages and states on the device only"),
        events=YES if options.events else No("switched off; set prefix_cache.options.events = true"),
    )


def build(args: PrefixCacheBuild) -> PrefixCache:
    """An empty cache. Raises `Unsupported` for a page size or component that `capabilities` does not name."""
    from srtkit_plugin_cache_mamba.cache import new_cache

    assert isinstance(args.options, MambaOptions)
    return new_cache(args, args.options)


@hookimpl
def srtkit_prefix_cache() -> PrefixCacheDescriptor:
    """Offers the cache `mamba`."""
    return PrefixCacheDescriptor(contract="1.0", options=MambaOptions, capabilities=capabilities, build=build)
