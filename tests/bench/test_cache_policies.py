"""The made-up trace is the same for the same seed, and the optimum is one: no choice of leaves to evict does better."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache as remembered

import numpy as np
import pytest

from bench.cache_policies import POLICIES
from bench.prefix_trace.generate import Event, Request, Trace, make_trace
from bench.prefix_trace.optimum import Future
from bench.prefix_trace.replay import Replay, new_cache

Page = tuple[int, ...]
"""A page of one token, by all tokens up to it."""


def tiny_trace(seed: int) -> Trace:
    """Eight requests of a few tokens over a small tree, at most two at once; some go on where one has ended."""
    random = np.random.default_rng(seed)
    fresh = iter(range(100, 200))
    ended: list[Request] = []
    requests: list[Request] = []
    events: list[Event] = []
    running: list[int] = []
    while len(requests) < 8 or running:
        if running and (len(running) == 2 or len(requests) == 8 or random.random() < 0.5):
            number = running.pop(int(random.integers(len(running))))
            events.append(Event(number, starts=False))
            ended.append(requests[number])
            continue
        before = [int(one) for one in random.integers(0, 2, random.integers(1, 4))]
        if ended and random.random() < 0.4:
            before = ended[int(random.integers(len(ended)))].ids.tolist()
        ids = [*before, next(fresh), next(fresh), next(fresh)]
        events.append(Event(len(requests), starts=True))
        running.append(len(requests))
        requests.append(Request(np.array(ids, np.int32), len(before) + 1, "chat", int(random.integers(2))))
    return Trace(requests, events)


def path(ids: list[int]) -> list[Page]:
    """The pages of these tokens, from the root."""
    return [tuple(ids[: n + 1]) for n in range(len(ids))]


def after_evicting(pages: frozenset[Page], pinned: set[Page], n: int) -> Iterator[frozenset[Page]]:
    """Every way to take n unpinned leaves, one after another."""
    if n <= 0:
        yield pages
        return
    for page in pages - pinned:
        if not any(other[:-1] == page for other in pages):
            yield from after_evicting(pages - {page}, pinned, n - 1)


def best_of_all_choices(trace: Trace, capacity: int) -> int:
    """The most tokens reused, by trying everything; pages of one token. Shares no code with the optimum."""

    @remembered
    def best(position: int, cached: frozenset[Page], running: frozenset[int]) -> int:
        if position == len(trace.events):
            return 0
        event = trace.events[position]
        request = trace.requests[event.request]
        ids = request.ids.tolist()
        if not event.starts:
            return best(position + 1, cached | set(path(ids[: request.computed])), running - {event.request})
        prompt = path(ids[: request.prompt])
        hit = 0
        while hit < request.prompt - 1 and prompt[hit] in cached:
            hit += 1
        holders = [trace.requests[n] for n in running]
        pinned = {page for one in holders for page in path(one.ids[: one.prompt].tolist())} | set(prompt[:hit])
        answers = sum(one.computed - one.prompt for one in holders)
        excess = len(cached) + answers + request.computed - hit - capacity
        choices = {frozenset(left | set(prompt)) for left in after_evicting(cached, pinned, excess)}
        return hit + max(best(position + 1, left, running | {event.request}) for left in choices)

    return best(0, frozenset(), frozenset())


@pytest.mark.parametrize("seed", range(25))
def test_the_optimum_is_the_best_of_all_choices(seed: int) -> None:
    trace = tiny_trace(seed)
    future = Future(trace, 1)
    for capacity in {future.most_running, future.most_running + 2, future.working_set()}:
        best = sum(future.hits(capacity))
        assert best == best_of_all_choices(trace, capacity)
        for policy in POLICIES:
            assert sum(Replay(new_cache("radix", policy, 1), 1, capacity).run(trace)) <= best


def test_tiny_traces_make_the_policies_differ_from_the_optimum() -> None:
    lost = dict.fromkeys(POLICIES, 0)
    for seed in range(25):
        trace = tiny_trace(seed)
        future = Future(trace, 1)
        capacity = future.most_running
        for policy in POLICIES:
            hits = Replay(new_cache("radix", policy, 1), 1, capacity).run(trace)
            lost[policy] += sum(future.hits(capacity)) - sum(hits)
    assert all(lost.values()), lost


def test_the_trace_is_the_seeds() -> None:
    one, same, other = make_trace(3, 200), make_trace(3, 200), make_trace(4, 200)
    assert one.events == same.events
    assert [a.ids.tobytes() for a in one.requests] == [b.ids.tobytes() for b in same.requests]
    assert one.about() == same.about()
    assert one.events != other.events


def test_no_policy_reuses_more_of_a_made_up_trace_than_the_optimum() -> None:
    trace = make_trace(1, 600)
    future = Future(trace, 16)
    pages = (future.most_running + future.working_set()) // 2
    best = sum(future.hits(pages))
    rates = {policy: sum(Replay(new_cache("radix", policy, 16), 16, pages).run(trace)) for policy in POLICIES}
    assert min(rates.values()) > 0
    assert max(rates.values()) < best < sum(future.hits())


def test_with_room_for_everything_a_cache_and_the_optimum_agree_request_by_request() -> None:
    trace = make_trace(1, 600)
    future = Future(trace, 16)
    everything = future.distinct + future.most_running
    assert Replay(new_cache("radix", "lru", 16), 16, everything).run(trace) == future.hits()
    assert future.hits(future.working_set()) == future.hits()
    assert sum(future.hits(future.working_set() - 1)) < sum(future.hits())


def test_too_small_a_pool_is_refused() -> None:
    future = Future(make_trace(2, 300), 16)
    with pytest.raises(ValueError, match="do not hold"):
        future.hits(future.most_running - 1)
