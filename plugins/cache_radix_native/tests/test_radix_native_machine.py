"""The suite's random traffic over every policy and with events on; the suite itself runs the defaults."""

from __future__ import annotations

import pytest

from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import PrefixCache, PrefixCacheBuild
from srtkit_conformance.inside import shortcomings
from srtkit_conformance.kits.prefix_cache.machine import run_machine
from srtkit_plugin_cache_radix_native import RadixOptions, build

pytestmark = pytest.mark.usefixtures("library")


def test_it_keeps_the_contract() -> None:
    assert shortcomings("prefix_cache:radix-native", level=2) == []


@pytest.mark.parametrize(
    "options", [*({"eviction": policy} for policy in ("lfu", "fifo", "slru", "priority")), {"events": True}], ids=str
)
def test_random_traffic(options: dict[str, object]) -> None:
    def make() -> PrefixCache:
        return build(PrefixCacheBuild(4, (FULL,), RadixOptions.model_validate(options)))

    run_machine(make, 4, (FULL,), salt=0, runs=20, shrink=True)
