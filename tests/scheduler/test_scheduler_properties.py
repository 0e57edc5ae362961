"""The scheduler alone, over thousands of steps: nothing leaks, nothing starves, tokens, order and limits hold."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srtkit.scheduler.limits import SchedulerLimits
from srtkit.scheduler.scheduler import Scheduler
from srtkit.spec.capabilities import NoOptions
from srtkit.spec.kv import FULL, STATE, Component
from srtkit.spec.messages import Abort, Deltas, Sampling, Submit, ints
from srtkit.spec.prefix_cache import PrefixCache, PrefixCacheBuild
from srtkit.spec.step_plan import ADMIT, Column
from srtkit_plugin_cache_chunk import srtkit_prefix_cache as chunk_cache
from srtkit_plugin_cache_radix import srtkit_prefix_cache as radix_cache
from tests.scheduler.any_cache import AnyCache
from tests.scheduler.invariants import check
from tests.scheduler.simulated_device import VOCAB, SimulatedDevice, expected, mix

WINDOW, WIDE = Component("window", reach="window", window=6), Component("wide", reach="window", window=17)
MODELS = ((FULL,), (FULL, WINDOW), (STATE, FULL), (WINDOW,), (STATE,), (WIDE, FULL, STATE, WINDOW))


def limits_of(
    rows: int, chunk: int, context: int, page: int, pools: dict[Component, int], **more: object
) -> SchedulerLimits:
    """Limits as the engine makes them of settings."""
    return SchedulerLimits(rows, max(rows, chunk), context, page, chunk_tokens=chunk, pools=pools, **more)  # type: ignore[arg-type]


def new_cache(name: str, page_size: int, components: tuple[Component, ...]) -> PrefixCache:
    """An empty cache of the repository, or the one of these tests."""
    if name == "any":
        return AnyCache(PrefixCacheBuild(page_size, components, NoOptions()))
    descriptor = {"radix": radix_cache, "chunk": chunk_cache}[name]()
    return descriptor.build(PrefixCacheBuild(page_size, components, descriptor.options()))


@dataclass
class Client:
    """What one request should get and has got."""

    want: list[int]
    got: list[int] = field(default_factory=list)
    ended: str = ""
    aborted: bool = False


class Bench:
    """Scheduler, cache and simulated device in the engine's loop, with the invariants checked after every step."""

    def __init__(self, limits: SchedulerLimits, cache: str, depth: int) -> None:
        built = self.cache = new_cache(cache, limits.page_size, tuple(limits.pools))
        self.limits = limits
        self.scheduler = Scheduler(limits, built, fit=lambda wanted: wanted)
        self.device = SimulatedDevice(limits)
        self.depth = depth
        self.in_flight: deque = deque()
        self.clients: dict[int, Client] = {}
        self.slots: dict[int, int] = {}
        self.steps = 0
        self.committed: dict[int, int] = {}  # by slot: tokens whose KV is committed
        built.insert = self.checked_insert(built.insert)

    def checked_insert(self, insert):  # type: ignore[no-untyped-def]
        """Only committed tokens may enter the cache, and only under their own ids."""

        def checked(lease, key, pages, upto):  # type: ignore[no-untyped-def]
            slots = [slot for slot, one in self.scheduler.running.items() if one.lease is lease]
            assert upto <= self.committed[slots[0]], "uncommitted tokens enter the cache"
            prefixes = list(accumulate(key.ids[:upto].tolist(), mix, initial=0))[1:]
            for number, component in enumerate(self.limits.pools):
                kv, table, size = self.device.kv[number], pages[component.name], self.limits.page_size
                if component.kind == "slot":
                    assert [kv[page] for page in table] == [prefixes[-1:]] * len(table), "a snapshot is not its key's"
                    continue
                assert table[component.first_page(upto // size * size, size) : upto // size].all(), "a hole in a window"
                for position in range(len(table[: upto // size]) * size):
                    if page := table[position // size]:
                        assert kv[page][position % size][0] == prefixes[position], "a page is not its key's"
            return insert(lease, key, pages, upto)

        return checked

    def submit(self, prompt: list[int], sampling: Sampling, namespace: bytes = b"", priority: int = 0) -> int:
        rid = len(self.clients) + 1
        want = expected(prompt, sampling.max_tokens, sampling.stop_ids, sampling.min_tokens, self.limits.max_context)
        self.clients[rid] = Client(want)
        self.scheduler.submit(Submit(rid, np.array(prompt, "<i4").tobytes(), sampling, namespace, priority))
        return rid

    def abort(self, rid: int) -> None:
        if not self.clients[rid].ended:
            self.clients[rid].aborted = True
        self.scheduler.abort(Abort(rid))
        check(self.scheduler)

    def turn(self) -> bool:
        plan = self.scheduler.plan()
        check(self.scheduler)
        if plan.rows:
            assert plan.rows <= self.limits.max_rows
            assert plan.tokens <= self.limits.max_tokens
            assert plan.tokens - plan.leading <= self.limits.chunk_tokens
            assert (np.diff(plan.column(Column.ROW_START)[: plan.leading]) <= 0).all(), "the longest come first"
            self.in_flight.append(self.device.forward(plan))
            self.steps += 1
        progressed = bool(plan.rows)
        while self.in_flight and (len(self.in_flight) > self.depth or not plan.rows):
            due, output = self.in_flight.popleft()
            slots = due.column(Column.ROW_SLOT).tolist()
            ends = (due.column(Column.ROW_START) + due.column(Column.ROW_N_QUERY)).tolist()
            self.committed.update(zip(slots, ends, strict=True))
            self.receive(self.scheduler.commit(due, output))
            check(self.scheduler)
            progressed = True
        news = self.scheduler.news()
        if news is not None:
            self.receive(news)
            progressed = True
        return progressed

    def receive(self, deltas: Deltas) -> None:
        for started in deltas.started:
            self.slots[started.slot] = started.rid
        for slot, token in zip(ints(deltas.slots).tolist(), ints(deltas.ids).tolist(), strict=True):
            client = self.clients[self.slots[slot]]
            assert not client.ended
            client.got.append(token)
        for finished in deltas.finished:
            assert not self.clients[finished.rid].ended
            self.clients[finished.rid].ended = finished.reason

    def drain(self) -> None:
        idle = 0
        while any(not client.ended for client in self.clients.values()):
            idle = 0 if self.turn() else idle + 1
            assert idle < 3, "the scheduler is stuck"
        self.turn()  # commits of rows that ended meanwhile

    def verify(self) -> None:
        for client in self.clients.values():
            if client.aborted:
                assert client.got == client.want[: len(client.got)]
            elif client.ended in ("stop", "length"):
                assert client.got == client.want
            else:
                assert client.ended == "error"
        pools = [part.pool for part in self.scheduler.book.parts]
        assert all(pool.in_use == pool.retiring == 0 for pool in pools)
        assert not self.scheduler.has_work
        assert self.scheduler.columns.free_slots == self.limits.max_rows
        self.scheduler.book.room.flush()
        assert all(pool.free == pool.total for pool in pools)


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[SchedulerLimits, str, int, list[tuple]]:
    page_size = draw(st.sampled_from([1, 2, 4, 16]))
    max_context = draw(st.integers(8, 80))
    max_running, chunk = draw(st.integers(1, 8)), draw(st.integers(1, 60))
    components = draw(st.sampled_from(MODELS))
    caches = ("any", "chunk") if components != (FULL,) else ("any", "chunk", "radix")

    def pages_of(component: Component) -> int:
        least = component.pages_held(max_context, chunk, page_size)
        return least + draw(st.integers(component.kind == "slot", 3 * least))

    limits = limits_of(
        max_running,
        chunk,
        max_context,
        page_size,
        {one: pages_of(one) for one in components},
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        shares=draw(st.booleans()),
        inner_snapshots=draw(st.booleans()),
    )
    stems = [draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=max_context - 2)) for _ in range(3)]
    events = []
    for _ in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(["submit", "submit", "submit", "turns", "abort", "flush"]))
        if kind == "submit":
            stem = draw(st.sampled_from(stems))
            cut = draw(st.integers(0, len(stem)))
            tail = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6))
            sampling = Sampling(
                temperature=0.0,
                max_tokens=draw(st.integers(1, max_context)),
                min_tokens=draw(st.integers(0, 3)),
                stop_ids=tuple(draw(st.lists(st.integers(0, VOCAB - 1), max_size=3))),
            )
            prompt = (stem[:cut] + tail)[: max_context - 1]
            namespace = draw(st.sampled_from([b"", b"salt"]))
            events.append((kind, prompt, sampling, namespace, draw(st.integers(0, 2))))
        elif kind == "turns":
            events.append((kind, draw(st.integers(1, 12))))
        else:
            events.append((kind, draw(st.integers(0, 10**6))))
    return limits, draw(st.sampled_from(caches)), draw(st.integers(0, 2)), events


@settings(max_examples=100, deadline=None, derandomize=True)
@given(scenarios())
def test_any_traffic(scenario: tuple[SchedulerLimits, str, int, list[tuple]]) -> None:
    limits, cache, depth, events = scenario
    bench = Bench(limits, cache, depth)
    for kind, *args in events:
        if kind == "submit":
            bench.submit(*args)
        elif kind == "turns":
            for _ in range(args[0]):
                bench.turn()
        elif kind == "abort" and bench.clients:
            bench.abort(1 + args[0] % len(bench.clients))
        elif kind == "flush":
            bench.scheduler.book.room.flush()
            check(bench.scheduler)
    bench.drain()
    bench.verify()


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("cache", ["radix", "chunk"])
def test_long_run_under_pressure(cache: str, depth: int) -> None:
    """A pool for two and a half sequences, eight running: retraction all the time, over a thousand steps."""
    limits = limits_of(8, 32, 64, 4, {FULL: 40})
    bench = Bench(limits, cache, depth)
    rng = np.random.default_rng(depth)
    stems = [rng.integers(0, VOCAB, 30).tolist() for _ in range(4)]
    for i in range(120):
        prompt = stems[i % 4][: int(rng.integers(1, 30))] + rng.integers(0, VOCAB, 3).tolist()
        bench.submit(prompt, Sampling(temperature=0.0, max_tokens=int(rng.integers(1, 40))))
        for _ in range(int(rng.integers(0, 8))):
            bench.turn()
        if i % 7 == 0:
            bench.abort(int(rng.integers(1, i + 2)))
    bench.drain()
    bench.verify()
    assert bench.scheduler.counters.retracted > 0
    assert bench.steps > 500


def test_order_of_arrival_is_order_of_start() -> None:
    limits = limits_of(2, 8, 32, 4, {FULL: 64}, shares=False)
    bench = Bench(limits, "chunk", 0)
    rids = [bench.submit([i + 1] * 5, Sampling(temperature=0.0, max_tokens=4)) for i in range(6)]
    started: list[int] = []
    original = bench.receive
    bench.receive = lambda deltas: (started.extend(s.rid for s in deltas.started), original(deltas))[1]  # type: ignore[method-assign]
    bench.drain()
    assert started == rids


def test_a_shared_prefix_is_computed_once() -> None:
    limits = limits_of(16, 256, 128, 4, {FULL: 400})
    bench = Bench(limits, "radix", 0)
    stem = list(range(40))
    for i in range(8):
        bench.submit([*stem, i, i + 1], Sampling(temperature=0.0, max_tokens=3))
    bench.drain()
    bench.verify()
    counters = bench.scheduler.counters
    assert counters.prompt_tokens == 8 * 42
    assert counters.cached_tokens == 7 * 40


@pytest.mark.parametrize(("second", "starts"), [(b"salt", 1), (b"another", 2)])
def test_only_a_prompt_of_the_same_salt_is_waited_for(second: bytes, starts: int) -> None:
    bench = Bench(limits_of(4, 256, 128, 4, {FULL: 100}), "radix", 0)
    for namespace in (b"salt", second):
        bench.submit(list(range(40)), Sampling(temperature=0.0, max_tokens=3), namespace)
    assert len(bench.scheduler.plan().column(Column.ADMIT).view(ADMIT)) == starts


def test_a_slot_that_ends_before_any_step_is_admitted_once() -> None:
    """A is aborted in flight; B gets a slot and no pages, is aborted too, and C gets B's slot before any step."""
    bench = Bench(limits_of(4, 64, 32, 4, {FULL: 8}), "radix", 1)
    scheduler = bench.scheduler
    first = bench.submit(list(range(31)), Sampling(temperature=0.0, max_tokens=1))
    bench.turn()
    bench.abort(first)
    stops = tuple(range(100, 116))
    second = bench.submit(list(range(50, 80)), Sampling(temperature=0.0, max_tokens=2, min_tokens=1, stop_ids=stops))
    bench.turn()
    assert len(scheduler.running) == 1, "the second has its slot"
    bench.abort(second)
    bench.submit(list(range(80, 90)), Sampling(temperature=0.0, max_tokens=2, min_tokens=1, stop_ids=stops))
    plan = scheduler.plan()
    assert len(plan.column(Column.ADMIT).view(ADMIT)) == 1
    assert len(plan.records(Column.STOP_IDS, 2)) == len(stops)


@pytest.mark.parametrize("depth", [0, 1])
def test_copies_of_cached_pages_do_not_stop_the_last_sequence(depth: int) -> None:
    """A prompt of whole pages that is cached recomputes its last page: then it holds two pages of the pool for one."""
    bench = Bench(limits_of(2, 64, 64, 4, {FULL: 16}), "radix", depth)
    for max_tokens in (1, 100):
        bench.submit(list(range(16)), Sampling(temperature=0.0, max_tokens=max_tokens))
        bench.drain()
    bench.verify()
    assert bench.scheduler.counters.retracted == 1


@pytest.mark.parametrize("depth", [0, 1])
def test_one_that_cannot_start_is_not_matched_in_every_step(depth: int) -> None:
    """Not until what it lacked can be had: a match of a long prompt takes time, and counts as a hit."""
    bench = Bench(limits_of(4, 128, 128, 4, {FULL: 32}), "radix", depth)
    matched = []
    match = bench.cache.match
    bench.cache.match = lambda key: matched.append(len(key.ids)) or match(key)  # type: ignore[method-assign]
    bench.submit(list(range(4)) * 20, Sampling(temperature=0.0, max_tokens=40))
    bench.turn()
    for _ in range(2):
        bench.submit([*range(4)] * 5 + [9] * 70, Sampling(temperature=0.0, max_tokens=4))
    for _ in range(30):
        bench.turn()
    assert len(bench.scheduler.waiting) == 2 and matched.count(90) == 1
    bench.drain()
    bench.verify()
    assert matched.count(90) <= 4


@pytest.mark.parametrize("depth", [0, 1])
def test_one_that_could_not_start_shares_what_another_has_begun_to_hold(depth: int) -> None:
    """Alone it needed room for its prefix, too, which could have been evicted; now one before it keeps that anyway."""
    bench = Bench(limits_of(4, 128, 100, 4, {FULL: 28}, policy="priority"), "radix", depth)
    stem = list(range(32))
    bench.submit([*stem, 40], Sampling(temperature=0.0, max_tokens=1))
    bench.drain()
    bench.submit([41] * 22, Sampling(temperature=0.0, max_tokens=4))
    bench.turn()
    late = bench.submit([*stem, *[42] * 58], Sampling(temperature=0.0, max_tokens=1))
    bench.turn()
    assert len(bench.scheduler.waiting) == 1
    before = bench.submit([*stem, 43], Sampling(temperature=0.0, max_tokens=12), priority=1)
    while not bench.clients[late].ended:
        bench.turn()
    assert not bench.clients[before].ended, "it has waited for the end of the one that shares its prefix"
    bench.drain()
    bench.verify()


@pytest.mark.parametrize("depth", [0, 1])
def test_prompts_go_on_beside_more_decoding_rows_than_a_chunk_has_tokens(depth: int) -> None:
    bench = Bench(limits_of(8, 2, 128, 4, {FULL: 200}), "chunk", depth)
    for i in range(6):
        bench.submit([i], Sampling(temperature=0.0, max_tokens=100))
    for _ in range(8):
        bench.turn()
    late = bench.submit([7] * 20, Sampling(temperature=0.0, max_tokens=1))
    for _ in range(20):
        bench.turn()
    assert bench.clients[late].ended, "it waits for the others to end"
    bench.drain()
    bench.verify()


def test_too_long_prompts_are_answered() -> None:
    bench = Bench(limits_of(1, 8, 16, 4, {FULL: 8}), "chunk", 0)
    for _ in range(2):
        bench.submit([1, 2, 3], Sampling(temperature=0.0, max_tokens=2))
    bench.submit(list(range(16)), Sampling(temperature=0.0, max_tokens=2))
    bench.drain()
    assert [client.ended for client in bench.clients.values()] == ["length", "length", "error"]
