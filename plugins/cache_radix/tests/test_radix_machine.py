"""The suite's random traffic over every policy and with events on; the suite itself runs the defaults."""

from __future__ import annotations

import pytest

from srtkit.spec.kv import FULL, Component
from srtkit.spec.prefix_cache import PrefixCache, PrefixCacheBuild
from srtkit_conformance.kits.prefix_cache.machine import run_machine
from srtkit_plugin_cache_radix import RadixOptions, build


@pytest.mark.parametrize(
    "options", [*({"eviction": policy} for policy in ("lfu", "fifo", "slru", "priority")), {"events": True}], ids=str
)
def test_random_traffic(options: dict[str, object]) -> None:
    def make() -> PrefixCache:
        return build(PrefixCacheBuild(4, (FULL,), RadixOptions.model_validate(options)))

    run_machine(make, 4, (FULL,), salt=0, runs=20, shrink=True)


NEAR, FAR = (Component(name, reach="window", window=window) for name, window in (("near", 5), ("far", 9)))
MIXTURES = [
    (FULL, Component("window", reach="window", window=6)),
    *(
        pytest.param(mixture, marks=pytest.mark.full)
        for mixture in (
            (FULL, Component("window", reach="window", window=2)),
            (FULL, Component("window", reach="window", window=100)),
            (NEAR,),
            (NEAR, FULL, FAR),
        )
    ),
]


@pytest.mark.parametrize("components", MIXTURES, ids=len)
def test_random_traffic_with_windows(components: tuple[Component, ...]) -> None:
    def make() -> PrefixCache:
        return build(PrefixCacheBuild(4, components, RadixOptions()))

    run_machine(make, 4, components, salt=len(components), runs=12, shrink=True)
