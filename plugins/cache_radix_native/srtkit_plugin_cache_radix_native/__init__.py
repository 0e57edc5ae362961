"""The radix prefix cache in C++: descriptor and options. Imports nothing but the contract, opens no library.

The cache is imported by `build`. Options and decisions are those of the cache `radix`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.capabilities import YES, No
from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.prefix_cache import CacheCapabilities, PrefixCache, PrefixCacheBuild, PrefixCacheDescriptor

PART = "prefix_cache:radix-native"
LIBRARY = Path(__file__).with_name("_radix.abi3.so")
REMEDY = 'install srtkit-plugin-cache-radix and write [prefix_cache] use = "radix": it decides the same'


class RadixOptions(BaseModel):
    """`[prefix_cache.options]`: `eviction` says which unpinned pages go first, `events` records changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    eviction: Literal["lru", "lfu", "fifo", "slru", "priority"] = Field(
        "lru", description="which unpinned pages go first: lru, lfu, fifo, slru, priority"
    )
    events: bool = Field(False, description="record stored, removed and cleared pages for cache-aware routing")


def capabilities(options: BaseModel) -> CacheCapabilities:
    """Shares prefixes of paged components of reach "all"; has no tiers."""
    assert isinstance(options, RadixOptions)
    return CacheCapabilities(
        page_sizes=range(1, 257),
        reaches=frozenset({"all"}),
        shares=YES,
        tiers=No("keeps pages on the device only"),
        events=YES if options.events else No("switched off; set prefix_cache.options.events = true"),
    )


def build(args: PrefixCacheBuild) -> PrefixCache:
    """An empty cache. Raises `Unsupported` for a page size or component that `capabilities` does not name."""
    from srtkit_plugin_cache_radix_native.cache import NativeRadixCache

    return NativeRadixCache(args)


@hookimpl
def srtkit_prefix_cache() -> PrefixCacheDescriptor:
    """Offers the cache `radix-native`. Raises `DeviceAbsent` without the library."""
    if not LIBRARY.exists():
        cause = "its library was not compiled: there was no C++ compiler, or no Python.h, when it was installed"
        raise DeviceAbsent(PART, cause, REMEDY)
    return PrefixCacheDescriptor(contract="1.0", options=RadixOptions, capabilities=capabilities, build=build)
