"""Prefix cache `my-plugin`: the descriptor. Data and pure functions; `build` imports the cache."""

from __future__ import annotations

from pydantic import BaseModel

from srtkit.spec.capabilities import No, NoOptions
from srtkit.spec.errors import Unsupported
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.prefix_cache import CacheCapabilities, PrefixCache, PrefixCacheBuild, PrefixCacheDescriptor

PAGE_SIZES = range(1, 257)


def capabilities(options: BaseModel) -> CacheCapabilities:
    """Takes any of these page sizes and any component, because it keeps none of their pages."""
    return CacheCapabilities(
        page_sizes=PAGE_SIZES,
        reaches=frozenset({"all", "window", "snapshot"}),
        shares=No("every sequence keeps its own pages"),
    )


def build(given: PrefixCacheBuild) -> PrefixCache:
    """An empty cache. Raises `Unsupported` for a page size that `capabilities` does not name."""
    if given.page_size not in PAGE_SIZES:
        raise Unsupported("prefix_cache:my-plugin", f"takes no pages of {given.page_size} tokens")
    from srtkit_plugin_cache_my_plugin.cache import MyPluginCache

    return MyPluginCache(given)


@hookimpl
def srtkit_prefix_cache() -> PrefixCacheDescriptor:
    """Offers the cache `my-plugin`."""
    return PrefixCacheDescriptor(contract="1.1", options=NoOptions, capabilities=capabilities, build=build)
