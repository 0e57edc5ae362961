"""Prefix cache `my-plugin`: the descriptor. Data and pure functions; `build` imports the cache."""

from __future__ import annotations

from pydantic import BaseModel

from srtkit.spec.capabilities import No, NoOptions
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.prefix_cache import CacheCapabilities, PrefixCache, PrefixCacheBuild, PrefixCacheDescriptor


def capabilities(options: BaseModel) -> CacheCapabilities:
    """Takes any page size and any component, because it keeps none of their pages."""
    return CacheCapabilities(
        page_sizes=range(1, 257),
        reaches=frozenset({"all", "window", "snapshot"}),
        shares=No("every sequence keeps its own pages"),
    )


def build(given: PrefixCacheBuild) -> PrefixCache:
    """An empty cache."""
    from srtkit_plugin_cache_my_plugin.cache import MyPluginCache

    return MyPluginCache(given)


@hookimpl
def srtkit_prefix_cache() -> PrefixCacheDescriptor:
    """Offers the cache `my-plugin`."""
    return PrefixCacheDescriptor(contract="1.0", options=NoOptions, capabilities=capabilities, build=build)
