"""The radix cache under the state machine: every policy, several page sizes, two components at once."""

from __future__ import annotations

import pytest

from plugins.cache_radix.tests.cache_machine import MakeCache, check_cache
from srtkit.spec.kv import Component
from srtkit.spec.prefix_cache import PrefixCache, PrefixCacheBuild
from srtkit_plugin_cache_radix import RadixOptions, build

POLICIES = ("lru", "lfu", "fifo", "slru", "priority")


def radix(**options: object) -> MakeCache:
    def make(page_size: int, names: tuple[str, ...]) -> PrefixCache:
        components = tuple(Component(name) for name in names)
        return build(PrefixCacheBuild(page_size, components, RadixOptions.model_validate(options)))

    return make


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy(policy: str) -> None:
    check_cache(radix(eviction=policy))


@pytest.mark.parametrize("page_size", [1, 2, 16, 64, 256])
def test_page_sizes(page_size: int) -> None:
    check_cache(radix(), page_size)


def test_two_components_live_and_die_together() -> None:
    check_cache(radix(), 4, ("full", "indexer"))


def test_with_events_on() -> None:
    check_cache(radix(events=True))
