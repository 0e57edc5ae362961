"""The memory plan: what is asked for is not exceeded, whatever the model's pages are like."""

from __future__ import annotations

import pytest

from srtkit.config.memory import GIB, MemoryPlan, plan_memory
from srtkit.config.settings import MemorySection
from srtkit.spec.errors import OutOfMemory
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.kv import FULL, STATE, Component
from srtkit.spec.models import ModelPlan
from srtkit.spec.platform import PlatformDefaults

WINDOW = Component("window", reach="window", window=64)
MODEL = ModelPlan("Toy", "float32", 100, 8, 256, {}, ())
LIMITS = Limits(max_rows=4, max_tokens=64, max_context=256, page_size=16)


def planned(
    asked: dict[str, float], total: int, page_bytes: dict[Component, int], host: int = 0, *, host_memory: bool = False
) -> MemoryPlan:
    """The plan of a device with that much memory, which may be the host's."""
    facts = DeviceFacts("toy", "toy", "toy", memory_bytes=total, host_memory=host_memory)
    return plan_memory(MemorySection(**asked), facts, PlatformDefaults({}), LIMITS, MODEL, page_bytes, 0, host)


@pytest.mark.parametrize("component", [WINDOW, STATE], ids=["window", "state"])
@pytest.mark.parametrize("asked", [{"kv_gib": 1000 / GIB}, {"fraction": 0.01}], ids=["kv_gib", "fraction"])
def test_pools_without_full_pages_stay_within_what_is_asked_for(component: Component, asked: dict[str, float]) -> None:
    """A window or a state takes the least that runs, also where that is more than there is: that is refused."""
    page_bytes = 1 << 20
    with pytest.raises(OutOfMemory):
        planned(asked, GIB // 8, {component: page_bytes})
    plan = planned({"kv_gib": 0.05}, GIB, {component: page_bytes})
    assert 0 < plan.kv <= 0.05 * GIB


@pytest.mark.parametrize(
    ("asked", "page_bytes", "figures"),
    [
        ({"fraction": 0.5}, 4 * GIB, r"8\.00 GiB of KV pages do not fit: 2\.00 GiB of 4\.00 GiB may be used"),
        ({"kv_gib": 5}, GIB // 8, r"5\.00 GiB of KV pages do not fit: 4\.00 GiB of 4\.00 GiB may be used"),
    ],
    ids=["fraction", "kv_gib"],
)
def test_a_refusal_has_the_figures(asked: dict[str, float], page_bytes: int, figures: str) -> None:
    """Two pages are the least; all that is asked for counts, where it is more."""
    with pytest.raises(OutOfMemory, match=figures):
        planned(asked, 4 * GIB, {FULL: page_bytes})


def test_every_paged_component_has_page_tables_of_its_own() -> None:
    """On the device two an entry of int32; in the host's memory their twin and the scheduler's, too."""
    entries = (LIMITS.max_rows + 1) * LIMITS.max_pages
    for host_memory, each in ((False, 8), (True, 17)):
        one, two, with_states = (
            planned({"fraction": 0.5}, GIB, dict.fromkeys(components, 1024), host_memory=host_memory).tables
            for components in ((FULL,), (FULL, WINDOW), (FULL, WINDOW, STATE))
        )
        assert two - one == with_states - one >= entries * each
        assert one >= entries * each


def test_memory_of_a_cache_on_the_host_is_planned() -> None:
    """It is the device's own where that is the host: there it takes room from the pages, or does not fit."""
    plan = planned({"fraction": 0.5}, GIB, {FULL: 1 << 24}, GIB // 4)
    assert any(line.startswith("host tier  0.25 GiB") and "beside" in line for line in plan.lines(16))
    less = planned({"fraction": 0.5}, GIB, {FULL: 1 << 24}, GIB // 4, host_memory=True)
    assert plan.kv - less.kv == GIB // 4
    assert "0.50 GiB" in less.lines(16)[-1]
    with pytest.raises(OutOfMemory, match=r"host tier \(0.50 GiB\)"):
        planned({"fraction": 0.5}, GIB, {FULL: 1 << 24}, GIB // 2, host_memory=True)
    assert not any("host tier" in line for line in planned({"fraction": 0.5}, GIB, {FULL: 1 << 24}).lines(16))
