"""The radix cache with one budget more: state snapshots. Knows how the parts are joined, and nothing of either."""

from __future__ import annotations

from collections.abc import Callable

from srtkit.spec.kv import Component
from srtkit.spec.prefix_cache import PrefixCacheBuild
from srtkit_plugin_cache_mamba import MambaOptions
from srtkit_plugin_cache_mamba.snapshots import Snapshots
from srtkit_plugin_cache_radix import RadixOptions
from srtkit_plugin_cache_radix.cache import BUDGETS, RadixCache
from srtkit_plugin_cache_radix.policies import Rank, Usage

PART = "prefix_cache:mamba"


def new_cache(build: PrefixCacheBuild, options: MambaOptions) -> RadixCache:
    """An empty cache. Raises `Unsupported` for a page size or component that it cannot keep."""

    def snapshots(component: Component, place: int, page_size: int, rank: Callable[[Usage], Rank]) -> Snapshots:
        return Snapshots(component, place, page_size, rank, every=options.every)

    radix = RadixOptions(eviction=options.eviction, events=options.events)
    return RadixCache(build, radix, {**BUDGETS, "snapshot": snapshots}, PART)
