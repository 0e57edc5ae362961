"""Page tables of steps on the host, of which only the rows that changed are copied, are those of the rows' slots."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from srtkit.engine.buffers import StepBuffers
from srtkit.engine.state import DeviceState
from srtkit.spec.facts import Limits
from srtkit.spec.kv import FULL
from srtkit.spec.platform import Platform
from srtkit.spec.step_plan import Column, RowFlag, StepKey, StepPlan
from srtkit_plugin_platform_cpu import Options
from srtkit_plugin_platform_cpu.platform import CpuPlatform

ROWS, PAGE, PAGES = 6, 4, 40


class Apart(CpuPlatform):
    """A CPU that says its memory is not the host's, so that tables on the host are a copy."""

    def device(self, index: int) -> torch.device:
        return torch.device("meta", index)


@pytest.fixture(params=[CpuPlatform, Apart])
def platform(request: pytest.FixtureRequest) -> Platform:
    return request.param(Options(threads=1))  # type: ignore[no-any-return]


def plans(draw: np.random.Generator) -> Iterator[StepPlan]:
    """Decode steps of slots that start, grow past pages, let go of pages, pause, change places and end, some padded."""
    length: dict[int, int] = {}
    given: dict[int, int] = {}
    for step in range(300):
        released = [slot for slot in list(length) if draw.random() < 0.05 or length[slot] == PAGE * PAGES]
        for slot in released:
            del length[slot], given[slot]
        for slot in range(1, ROWS + 1):
            if slot not in length and draw.random() < 0.2:  # perhaps one that ends with this very plan
                length[slot], given[slot] = int(draw.choice([0, 3, 17, 70])), 0
        slots = [slot for slot in length if draw.random() < 0.9] or list(length)
        if draw.random() < 0.2:
            draw.shuffle(slots)
        writes = []
        for slot in length:
            needed = length[slot] // PAGE + 1
            writes += [(0, slot, index, int(draw.integers(1, 99))) for index in range(given[slot], needed)]
            given[slot] = needed
            if draw.random() < 0.15:
                writes.append((0, slot, int(draw.integers(needed)), 0))
        if draw.random() < 0.3:
            slots = slots[: len(slots) // 2 + 1]
        if not slots:
            continue
        columns = {
            Column.ROW_SLOT: np.array(slots),
            Column.ROW_N_QUERY: np.ones(len(slots)),
            Column.ROW_START: np.array([length[slot] for slot in slots]),
            Column.ROW_FLAGS: np.full(len(slots), int(RowFlag.EXACT | RowFlag.SAMPLE)),
            Column.RELEASE: np.array(released),
            Column.PAGE_WRITES: np.array(writes).ravel(),
        }
        rows = int(draw.integers(len(slots), ROWS + 1))
        key = StepKey(rows, rows, q_len=1)
        yield StepPlan(step, key, 0, len(slots), {name: one.astype(np.int32) for name, one in columns.items()})
        for slot in slots:
            length[slot] += 1


@pytest.mark.parametrize("recorded", [False, True])
def test_tables_of_a_step_are_those_of_its_slots(platform: Platform, recorded: bool) -> None:
    limits = Limits(max_rows=ROWS, max_tokens=ROWS, max_context=PAGE * PAGES, page_size=PAGE, depth=1)
    state, buffers = DeviceState(platform, limits), StepBuffers(platform, limits, (FULL,))
    seen = 0
    for plan in plans(np.random.default_rng(3)):
        state.apply(plan)
        step = buffers.build(plan, state, recorded=recorded)
        view, slots = step.views[FULL.name], plan.column(Column.ROW_SLOT)
        wanted = state.host_pages[0][np.pad(slots, (0, step.batch.rows - len(slots)))]
        np.testing.assert_array_equal(view.host_pages, wanted[:, : view.host_pages.shape[1]])
        own = state.page_tables[0].numpy()
        np.testing.assert_array_equal(own, state.host_pages[0])
        positions = plan.column(Column.ROW_START)
        places = own[slots, positions // PAGE] * PAGE + positions % PAGE
        np.testing.assert_array_equal(view.slot_mapping.numpy()[: len(slots)], places)
        seen += len(slots)
    assert seen > 600, "too few rows to prove anything"
