"""The suite's random traffic over mixtures of components; the suite itself runs the defaults."""

from __future__ import annotations

import pytest

from srtkit.spec.kv import FULL, STATE, Component
from srtkit.spec.prefix_cache import PrefixCache, PrefixCacheBuild
from srtkit_conformance.kits.prefix_cache.machine import run_machine
from srtkit_plugin_cache_mamba import MambaOptions, build

WINDOW = Component("window", reach="window", window=6)


MIXTURES = [
    (FULL, WINDOW, STATE),
    *(pytest.param(mixture, marks=pytest.mark.full) for mixture in ((FULL, STATE), (STATE,), (WINDOW, STATE))),
]


@pytest.mark.parametrize("components", MIXTURES, ids=len)
@pytest.mark.parametrize("options", [{}, {"eviction": "slru", "every": 8, "events": True}], ids=str)
def test_random_traffic(components: tuple[Component, ...], options: dict[str, object]) -> None:
    def make() -> PrefixCache:
        return build(PrefixCacheBuild(4, components, MambaOptions.model_validate(options)))

    run_machine(make, 4, components, salt=len(components), runs=12, shrink=True)
