"""What holds between any two calls of the scheduler: every page in one state, the counts equal to what is held."""

from __future__ import annotations

import numpy as np

from srtkit.scheduler.columns import State
from srtkit.scheduler.component import PagedComponent
from srtkit.scheduler.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """Raises AssertionError naming what does not add up."""
    for part in scheduler.book.parts:
        check_part(scheduler, part)


def check_part(scheduler: Scheduler, part: PagedComponent) -> None:
    """The same for one component."""
    pool, state = part.pool, scheduler.columns.state
    counts = (pool.free, pool.cached, pool.in_use, pool.retiring)
    assert sum(counts) == pool.total and min(counts) >= 0, f"{pool.component}: {counts} of {pool.total}"
    held = {True: [], False: []}
    for slot in range(len(state)):
        own = part.table[slot][part.own[slot]]
        assert slot in scheduler.running or len(own) == 0, "a free slot holds pages"
        held[state[slot] == State.RETIRING].append(own)
    retiring, in_use = (np.concatenate([np.empty(0, np.int32), *held[key]]) for key in (True, False))
    assert len(retiring) == pool.retiring and len(in_use) == pool.in_use
    pages = np.concatenate((pool._free[: pool.free], retiring, in_use))
    assert len(np.unique(pages)) == len(pages), "a page has two owners"
    assert pages.min(initial=1) >= 1, "the scratch page was given out"
    cached = scheduler.book.cache.stats().cached_pages.get(pool.component, 0)
    assert cached == pool.cached, f"{pool.component}: the cache says {cached} pages, the pool {pool.cached}"
