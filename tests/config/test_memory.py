"""The memory plan: what is asked for is not exceeded, whatever the model's pages are like."""

from __future__ import annotations

import pytest

from srtkit.config.memory import GIB, plan_memory
from srtkit.config.settings import MemorySection
from srtkit.spec.errors import OutOfMemory
from srtkit.spec.facts import Limits
from srtkit.spec.kv import STATE, Component
from srtkit.spec.models import ModelPlan
from srtkit.spec.platform import PlatformDefaults

WINDOW = Component("window", reach="window", window=64)
MODEL = ModelPlan("Toy", "float32", 100, 8, 256, {}, ())
LIMITS = Limits(max_rows=4, max_tokens=64, max_context=256, page_size=16)


@pytest.mark.parametrize("component", [WINDOW, STATE], ids=["window", "state"])
@pytest.mark.parametrize("asked", [{"kv_gib": 1000 / GIB}, {"fraction": 0.01}], ids=["kv_gib", "fraction"])
def test_pools_without_full_pages_stay_within_what_is_asked_for(component: Component, asked: dict[str, float]) -> None:
    """A window or a state takes the least that runs, also where that is more than there is: that is refused."""
    page_bytes = 1 << 20
    with pytest.raises(OutOfMemory):
        plan_memory(
            MemorySection(**asked), GIB // 8, PlatformDefaults({}), LIMITS, MODEL, {component: page_bytes}, captured=0
        )
    room = MemorySection(kv_gib=0.05)
    plan = plan_memory(room, GIB, PlatformDefaults({}), LIMITS, MODEL, {component: page_bytes}, captured=0)
    assert 0 < plan.kv <= 0.05 * GIB
