"""Windows and states beside full pages: what is let go early, what a cached prefix needs, when a state is copied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from srtkit.scheduler.limits import SchedulerLimits
from srtkit.spec.kv import FULL, STATE, Component
from srtkit.spec.messages import Sampling
from srtkit.spec.step_plan import Column, StepPlan
from tests.scheduler.simulated_device import VOCAB
from tests.scheduler.test_scheduler_properties import MODELS, Bench, limits_of

PAGE = 4
WINDOW = Component("window", reach="window", window=10)
HYBRID = limits_of(4, 64, 128, PAGE, {FULL: 128, STATE: 16})


class Recorded(Bench):
    """A bench that keeps every plan it has launched."""

    def __init__(self, limits: SchedulerLimits, cache: str = "any", depth: int = 1) -> None:
        super().__init__(limits, cache, depth)
        self.plans: list[StepPlan] = []
        forward = self.device.forward

        def recording(plan: StepPlan):  # type: ignore[no-untyped-def]
            self.plans.append(plan)
            return forward(plan)

        self.device.forward = recording  # type: ignore[method-assign]

    def serve(self, prompt: list[int], max_tokens: int = 3) -> int:
        """Run a prompt to its end; how many of its tokens came from the cache."""
        before = self.scheduler.counters.cached_tokens
        self.submit(prompt, Sampling(temperature=0.0, max_tokens=max_tokens))
        self.drain()
        return self.scheduler.counters.cached_tokens - before

    def column(self, column: Column, words: int) -> list[tuple[int, ...]]:
        """All records of a column so far."""
        return [tuple(record) for plan in self.plans for record in plan.records(column, words).tolist()]


def test_pages_before_a_window_are_let_go_while_the_sequence_runs() -> None:
    """A pool for one window serves a context of many, in chunks and token by token."""
    chunk, context = 8, 120
    held = WINDOW.pages_held(context, chunk, PAGE)
    bench = Recorded(limits_of(1, chunk, context, PAGE, {FULL: 30, WINDOW: held}), "chunk")
    window = bench.scheduler.book.parts[1]
    bench.submit(list(range(60)), Sampling(temperature=0.0, max_tokens=60))
    most = 0
    while bench.turn():
        most = max(most, window.pool.in_use + window.pool.retiring)
    bench.verify()
    assert most <= held < context // PAGE
    let_go = [(slot, index) for component, slot, index, page in bench.column(Column.PAGE_WRITES, 4) if page == 0]
    assert let_go == [(1, index) for index in range(len(let_go))]
    assert len(let_go) >= (context - WINDOW.window) // PAGE - 2


@pytest.mark.parametrize("depth", [0, 1])
def test_a_sequence_alone_outgrows_the_window_that_its_lease_pins(depth: int) -> None:
    """The pool holds what it sees and a chunk: no room for the last window of its prompt beside the one it is in."""
    window, chunk, context = Component("window", reach="window", window=40), 4, 120
    pools = {FULL: 60, window: window.pages_held(context, chunk, PAGE)}
    bench = Recorded(limits_of(1, chunk, context, PAGE, pools), depth=depth)
    bench.serve(list(range(60)), max_tokens=60)
    bench.verify()
    assert 0 < bench.scheduler.counters.retracted < 10


def test_pages_held_bounds_every_window() -> None:
    """By counting: positions seen and written from any committed length on."""
    for size in (1, 3, 4, 16):
        for window in (1, 2, size, size + 1, 33):
            component = Component("window", reach="window", window=window)
            for chunk in (1, size, 2 * size + 1):
                starts = [component.first_page(done // size * size, size) for done in range(3 * window + 2 * size)]
                ends = [-(-(done + chunk) // size) for done in range(3 * window + 2 * size)]
                most = max(end - start for start, end in zip(starts, ends, strict=True))
                assert most <= component.pages_held(10**6, chunk, size) <= most + 1


@pytest.mark.parametrize("depth", [0, 2])
def test_a_prefix_is_reused_with_the_last_pages_of_its_window(depth: int) -> None:
    bench = Recorded(limits_of(2, 64, 128, PAGE, {WINDOW: 40, FULL: 80}), depth=depth)
    prompt = list(range(40))
    assert bench.serve(prompt) == 0
    assert bench.serve([*prompt, 1, 2]) == 40
    cached = bench.cache
    while cached.evictable("window"):
        bench.scheduler.book.room.take_evicted(cached.evict("window", 1))
    assert cached.stats().cached_pages["full"] > 0
    assert bench.serve([*prompt, 3, 4]) == 0, "full pages alone do not make a prefix"
    assert bench.serve([*prompt, 5, 6]) == 40, "the hole was filled"
    bench.verify()


def test_states_start_from_zero_or_from_a_snapshot_in_the_first_step() -> None:
    bench = Recorded(HYBRID)
    prompt = list(range(21))
    assert bench.serve(prompt) == 0
    assert [record[:1] for record in bench.column(Column.ZERO, 2)] == [(1,)]
    ((row, offset, snapshot),) = bench.column(Column.SNAPSHOTS, 3)[:1]
    assert (row, offset) == (0, 20), "after its last whole page, where the chunk ends"
    del bench.plans[:]
    assert bench.serve([*prompt, 7]) == 20
    assert not bench.column(Column.ZERO, 2)
    ((component, source, target),) = bench.column(Column.COPIES, 3)
    assert (component, source) == (1, snapshot) and target != snapshot
    assert bench.plans[0].records(Column.COPIES, 3).size, "before anything of it is computed"
    bench.verify()


def test_a_snapshot_is_made_where_prompts_part() -> None:
    """The second prompt finds pages without a state: it computes them again and leaves a state for the third."""
    bench = Recorded(HYBRID)
    stem = list(range(24))
    found = [bench.serve([*stem, *tail, 9, 9, 9, 9, 9]) for tail in ([1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3])]
    assert found == [0, 0, 24]
    bench.verify()


@pytest.mark.parametrize("inner", [False, True], ids=["cut", "inside"])
def test_chunks_end_at_snapshots_unless_they_can_be_made_inside(inner: bool) -> None:
    bench = Recorded(replace(HYBRID, inner_snapshots=inner), depth=0)
    bench.serve(list(range(23)), max_tokens=1)
    lengths = [plan.column(Column.ROW_N_QUERY).tolist() for plan in bench.plans]
    assert lengths == ([[23]] if inner else [[20], [3]])
    assert bench.column(Column.SNAPSHOTS, 3)[0][:2] == (0, 20)
    bench.verify()


def test_sequences_run_without_snapshots_when_no_state_slot_is_left() -> None:
    bench = Recorded(limits_of(3, 64, 64, PAGE, {STATE: 3, FULL: 64}))
    for i in range(3):
        bench.submit([i] * 20, Sampling(temperature=0.0, max_tokens=30))
    bench.drain()
    bench.verify()
    assert bench.scheduler.counters.retracted == 0


@pytest.mark.parametrize("components", MODELS[1:], ids=lambda components: "-".join(one.name for one in components))
def test_long_run_under_pressure(components: tuple[Component, ...]) -> None:
    """Two and a half sequences' pages, six running, prompts that share stems: everything is put back and reused."""
    context, chunk = 64, 24
    pools = {one: 12 if one == STATE else one.pages_held(context, chunk, PAGE) * 5 // 2 for one in components}
    bench = Recorded(limits_of(6, chunk, context, PAGE, pools))
    rng = np.random.default_rng(5)
    stems = [rng.integers(0, VOCAB, 30).tolist() for _ in range(3)]
    for i in range(40):
        prompt = stems[i % 3][: int(rng.integers(4, 30))] + rng.integers(0, VOCAB, 3).tolist()
        bench.submit(prompt, Sampling(temperature=0.0, max_tokens=int(rng.integers(1, 30))))
        for _ in range(int(rng.integers(0, 6))):
            bench.turn()
        if i % 7 == 0:
            bench.abort(int(rng.integers(1, i + 2)))
    bench.drain()
    bench.verify()
    assert bench.scheduler.counters.cached_tokens > 0


def test_a_state_that_nobody_will_use_is_not_started() -> None:
    """Its sequence ended before any step: the slot may be another one's by then."""
    bench = Recorded(HYBRID)
    book = bench.scheduler.book
    bench.submit([1] * 9, Sampling(temperature=0.0, max_tokens=3))
    bench.scheduler._admit(64)
    state = next(part for part in book.parts if part is book.state)
    assert state.own.any()
    bench.abort(1)
    zero, copies = state.drain_starts()
    assert len(zero) == len(copies) == 0


def test_a_snapshot_that_was_missed_is_made_later() -> None:
    """While two run on two state slots there is none for a snapshot; when one has ended, the other leaves one."""
    bench = Recorded(limits_of(2, 64, 128, PAGE, {STATE: 2, FULL: 64}))
    bench.submit([1] * 20, Sampling(temperature=0.0, max_tokens=60))
    bench.submit([2] * 20, Sampling(temperature=0.0, max_tokens=6))
    while len(bench.scheduler.running) != 1 or not bench.clients[2].ended:
        bench.turn()
    assert not bench.column(Column.SNAPSHOTS, 3)
    bench.drain()
    bench.verify()
    assert bench.column(Column.SNAPSHOTS, 3)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_snapshot_that_is_wanted_when_its_chunk_has_been_planned_is_made_in_a_later_one(depth: int) -> None:
    """This cache wants one every chunk, and says so only when the chunk before is there."""
    bench = Recorded(replace(HYBRID, chunk_tokens=8), depth=depth)
    match = bench.cache.match
    bench.cache.match = lambda key: replace(match(key), snapshot_at=())  # type: ignore[method-assign]
    bench.serve([*range(50), *range(50)], max_tokens=1)
    bench.verify()
    ends = [
        plan.column(Column.ROW_START)[0] + offset
        for plan in bench.plans
        for row, offset, _ in plan.records(Column.SNAPSHOTS, 3)
    ]
    assert len([end for end in ends if end < 100]) >= 100 // 8 // (depth + 1) - 1


def test_nothing_is_evicted_for_a_snapshot_that_its_sequence_cannot_hold() -> None:
    bench = Recorded(limits_of(2, 64, 128, PAGE, {STATE: 6, FULL: 64}))
    bench.serve([1] * 21)
    book = bench.scheduler.book
    assert book.state is not None and bench.cache.evictable("state")
    bench.submit([2] * 30, Sampling(temperature=0.0, max_tokens=3))
    (chunk,) = bench.scheduler._admit(64)
    book.state.table[chunk.slot, 1:] = 99
    while book.state.pool.free:
        book.state.pool.take(1)
    evictable = bench.cache.evictable("state")
    bench.scheduler.columns.snapshot_at[chunk.slot, 0] = 4
    found = book._snapshots(book.state, *(np.array([x], np.int32) for x in (chunk.slot, 0, 8)))
    assert not len(found) and bench.cache.evictable("state") == evictable > 0


def test_nothing_more_is_asked_of_a_cache_that_was_emptied_meanwhile() -> None:
    """It takes nothing more of this sequence: neither pages nor snapshots are offered in every step."""
    bench = Recorded(limits_of(2, 64, 128, PAGE, {STATE: 6, FULL: 64}))
    offered = []
    insert = bench.cache.insert
    bench.cache.insert = lambda *given: offered.append(given[3]) or insert(*given)  # type: ignore[method-assign]
    bench.submit([1] * 21, Sampling(temperature=0.0, max_tokens=60))
    for _ in range(8):
        bench.turn()
    bench.scheduler.book.room.flush()
    before = len(offered)
    bench.drain()
    bench.verify()
    assert len(offered) - before <= 3
