"""Caches around real inner ones, a scheduler's random life over them, and what is truly cached, asked of `peek`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np

from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import CacheEvent, PrefixCache, PrefixCacheBuild
from srtkit_conformance.kits.needs import needs_of
from srtkit_conformance.kits.prefix_cache.caller import Caller
from srtkit_conformance.kits.prefix_cache.prompts import Prompt, prompt_pool
from srtkit_plugin_cache_events import EventsOptions, build, srtkit_prefix_cache
from srtkit_plugin_cache_events.client import Follower, View, page_hashes
from srtkit_plugin_cache_events.publisher import Publisher

PAGE = 4
PATIENCE_S = 10.0


def new_cache(**options: object) -> PrefixCache:
    """An empty cache of one component."""
    given = EventsOptions.model_validate(options)
    request = PrefixCacheBuild(PAGE, (FULL,), given)
    needs = needs_of(srtkit_prefix_cache(), given, {"prefix_cache": request})
    return build(PrefixCacheBuild(PAGE, (FULL,), given, needs=needs))


def endpoints(cache: PrefixCache) -> tuple[str, str]:
    """Where it publishes and replays."""
    where = cache.stats().extra["events"]
    return where["endpoint"], where["replay"]


def follow(cache: PrefixCache, **options: float) -> Follower:
    """A router with this one server, "a"."""
    return Follower({"a": endpoints(cache)}, **options)  # type: ignore[arg-type]


def publisher(**options: object) -> Publisher:
    """One without a cache."""
    return Publisher(EventsOptions.model_validate(options), PAGE)


def until(follower: Follower, done: Callable[[View], bool]) -> View:
    """Poll until the view of "a" is so; fails after a while."""
    view, end = follower.views["a"], time.monotonic() + PATIENCE_S
    while not done(view):
        assert time.monotonic() < end, f"stays at {view.run=} {view.sequence=} with {len(view.hashes)} hashes"
        follower.poll(0.01)
    return view


def catches_up(follower: Follower, truth: set[int]) -> bool:
    """Whether the view becomes the truth, and stays so once everything published has come."""
    until(follower, lambda view: view.current and view.hashes == truth)
    follower.poll(0.03)
    return follower.views["a"].hashes == truth


def stored(hashes: Iterable[int], parent: int = 0) -> CacheEvent:
    return CacheEvent("stored", tuple(hashes), parent)


class Life:
    """A scheduler that starts, commits, ends, evicts and now and then resets, by a seed; prompts share prefixes."""

    def __init__(self, cache: PrefixCache, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.caller = Caller(cache, PAGE, [FULL], total=40)
        self.prompts = prompt_pool(PAGE, self.random)

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        caller, running = self.caller, self.caller.running
        match int(self.random.integers(20)):
            case 0 if self.random.random() < 0.3:
                caller.reset()
            case 1 | 2:
                caller.evict("full", int(self.random.integers(1, 9)))
            case n if n < 10 and running:
                caller.end(running[n % len(running)], keep=n > 3)
            case n if n < 14 and running:
                one = running[n % len(running)]
                caller.commit(one, int(self.random.integers(one.lease.length, len(one.prompt) + 1)))
            case n:
                caller.start(self.prompts[int(self.random.integers(len(self.prompts)))])

    def truth(self) -> set[int]:
        """Hashes of what is cached, by `peek` and the router's hash function: no event is asked."""
        lengths = self.caller.cache.peek([prompt.key for prompt in self.prompts])
        pairs = zip(self.prompts, lengths, strict=True)
        return {one for prompt, length in pairs for one in hashes_of(prompt)[: length // PAGE]}


def hashes_of(prompt: Prompt) -> list[int]:
    """As a router makes them."""
    return page_hashes(prompt.key.ids, PAGE, prompt.key.namespace, prompt.key.spans)
