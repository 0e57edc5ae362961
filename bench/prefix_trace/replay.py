"""Drives a real prefix cache through a trace as the scheduler does. Knows no policy and no future."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points

import numpy as np

from bench.prefix_trace.generate import Request, Trace
from srtkit.scheduler.pages import PagePool
from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import CacheKey, Lease, PrefixCache, PrefixCacheBuild, PrefixCacheDescriptor
from srtkit.spec.step_plan import Ints


def new_cache(name: str, policy: str, page_size: int) -> PrefixCache:
    """An empty cache of an installed plugin."""
    (entry,) = entry_points(group="srtkit.prefix_cache.v1", name=name)
    descriptor: PrefixCacheDescriptor = entry.load().srtkit_prefix_cache()
    options = descriptor.options.model_validate({"eviction": policy})
    return descriptor.build(PrefixCacheBuild(page_size, (FULL,), options))


@dataclass
class Running:
    """A request that has started: its lease, and all its pages, those of the answer to come included."""

    lease: Lease
    pages: Ints


class Replay:
    """One cache over a pool of pages. `hits` are each request's prompt tokens that need not be computed.

    A start takes pages for the answer too and commits the whole prompt at once, as if prefill took no time; the
    end commits the answer. Nothing waits for memory: the pool must hold all that the trace runs at once.
    """

    def __init__(self, cache: PrefixCache, page_size: int, pages: int) -> None:
        self.hits: list[int] = []
        self._cache = cache
        self._page_size = page_size
        self._pool = PagePool(FULL.name, pages)
        self._running: dict[int, Running] = {}

    def run(self, trace: Trace) -> list[int]:
        """All of a trace; returns `hits`. Raises `OutOfMemory` when the pool is too small to run it."""
        for event in trace.events:
            request = trace.requests[event.request]
            if event.starts:
                self._running[event.request] = self._start(request)
            else:
                self._end(request, self._running.pop(event.request))
        return self.hits

    def _start(self, request: Request) -> Running:
        """Match, make room, commit the prompt."""
        prompt = request.ids[: request.prompt]
        lease = self._cache.match(CacheKey(prompt, limit=len(prompt) - 1, priority=request.priority))
        self.hits.append(lease.length)
        mine = lease.pages[FULL.name]
        missing = -(-request.computed // self._page_size) - len(mine)
        if self._pool.free < missing:
            evicted = self._cache.evict(FULL.name, missing - self._pool.free)
            self._pool.from_cache(evicted.pages[FULL.name])
        running = Running(lease, np.concatenate((mine, self._pool.take(missing))))
        self._keep(request, running, request.prompt)
        return running

    def _end(self, request: Request, running: Running) -> None:
        """Commit the answer, let go of everything."""
        self._keep(request, running, request.computed)
        own = running.pages[len(running.lease.pages[FULL.name]) :]
        self._pool.retire(len(own))
        self._pool.retired(own)
        self._cache.release(running.lease)

    def _keep(self, request: Request, running: Running, upto: int) -> None:
        """Give the cache every whole page below `upto`."""
        before = running.lease.length
        if upto // self._page_size <= before // self._page_size:
            return
        key = CacheKey(request.ids[:upto], limit=upto, priority=request.priority)
        running.lease, remaps = self._cache.insert(running.lease, key, {FULL.name: running.pages}, upto)
        assert not remaps, "a prompt was in the cache beyond its match: two requests share their last token"
        self._pool.to_cache((running.lease.length - before) // self._page_size)
