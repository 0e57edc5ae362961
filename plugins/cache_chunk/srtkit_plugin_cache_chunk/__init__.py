"""The chunk cache: descriptor. Imports nothing but the contract.

The cache is imported by `build`.
"""

from __future__ import annotations

from pydantic import BaseModel

from srtkit.spec.capabilities import No, NoOptions
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.prefix_cache import CacheCapabilities, PrefixCache, PrefixCacheBuild, PrefixCacheDescriptor

PAGE_SIZES = range(1, 257)


def capabilities(options: BaseModel) -> CacheCapabilities:
    """Takes any component, because it keeps none."""
    reason = "every sequence keeps its own pages"
    return CacheCapabilities(
        page_sizes=PAGE_SIZES,
        reaches=frozenset({"all", "window", "snapshot"}),
        shares=No(reason),
        tiers=No(reason),
        events=No(reason),
    )


def build(args: PrefixCacheBuild) -> PrefixCache:
    """A cache that stays empty."""
    from srtkit_plugin_cache_chunk.cache import ChunkCache

    return ChunkCache(args)


@hookimpl
def srtkit_prefix_cache() -> PrefixCacheDescriptor:
    """Offers the cache `chunk`."""
    return PrefixCacheDescriptor(contract="1.0", options=NoOptions, capabilities=capabilities, build=build)
