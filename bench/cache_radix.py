"""The radix prefix cache is quick, and as quick in a large tree as in a small one.

`--cache radix-native` measures the one in C++. `--full` goes up to 100,000 sequences and 1,000,000 nodes (minutes,
2 GB). Times are CPU time of the thread, so a busy machine disturbs them little; garbage collection is off, as in the
engine's loop. Trees have been larger before sequences are timed, as in a server that evicts what it takes in: memory
for new nodes has been used before. Table to standard error, JSON to standard output.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points

import numpy as np
from rich.console import Console

from bench.goals import Finding, print_findings
from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import CacheKey, PrefixCache, PrefixCacheBuild, PrefixCacheDescriptor
from srtkit.spec.step_plan import Ints

PAGE = 16
TOKENS = 2048
SHARED = 1024
SAMPLES = 2000
RUN_GOALS_US = {"radix": 60, "radix-native": 10}
EVICT_GOAL_US = 20


@dataclass
class Load:
    """Makes sequences of `tokens` tokens and runs them through a cache as a scheduler would."""

    tokens: int
    cache: PrefixCache
    known: list[Ints] = field(default_factory=list)
    next_page: int = 1

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(1)

    def fresh(self) -> Ints:
        """Token ids nobody has used."""
        return self.random.integers(0, 150_000, self.tokens, dtype=np.int32)

    def again(self) -> Ints:
        """A stored sequence, just written, as a request's are."""
        return self.known[int(self.random.integers(len(self.known)))].copy()

    def half(self) -> Ints:
        """Begins as a stored sequence, goes on by itself."""
        ids = self.fresh()
        ids[:SHARED] = self.again()[:SHARED]
        return ids

    def run(self, ids: Ints) -> float:
        """Admit, commit and end one sequence; returns the seconds of match + insert."""
        pages = np.arange(self.next_page, self.next_page + self.tokens // PAGE, dtype=np.int32)
        self.next_page += len(pages)
        whole, admitted = CacheKey(ids), CacheKey(ids, limit=len(ids) - 1)
        before = time.thread_time()
        lease = self.cache.match(admitted)
        pages[: len(lease.pages["full"])] = lease.pages["full"]
        lease, _ = self.cache.insert(lease, whole, {"full": pages}, len(ids))
        seconds = time.thread_time() - before
        self.cache.release(lease)
        return seconds

    def evict_one(self) -> float:
        """Evict one page; returns the seconds."""
        before = time.thread_time()
        self.cache.evict("full", 1)
        return time.thread_time() - before


def new_cache(name: str) -> PrefixCache:
    """An empty cache of an installed plugin, with its own defaults."""
    (entry,) = entry_points(group="srtkit.prefix_cache.v1", name=name)
    descriptor: PrefixCacheDescriptor = entry.load().srtkit_prefix_cache()
    return descriptor.build(PrefixCacheBuild(PAGE, (FULL,), descriptor.options()))


def finding(claim: str, goal: float, timed: Callable[[], float]) -> Finding:
    """The median, and the 1st and 99th percentile as its range, in µs."""
    micros = sorted(1e6 * timed() for _ in range(SAMPLES))
    low, high = micros[SAMPLES // 100], micros[-1 - SAMPLES // 100]
    return Finding(claim, "<=", goal, "µs", statistics.median(micros), low, high)


def sequences(cache: str, sizes: list[int]) -> Iterator[Finding]:
    """Match + insert in trees of several sizes: nothing known, half known, all known."""
    for size in sizes:
        load = Load(TOKENS, new_cache(cache))
        for _ in range(2 * SAMPLES):
            load.run(load.fresh())
        before = load.cache.evictable("full")
        while len(load.known) < size:
            load.known.append(load.fresh())
            load.run(load.known[-1])
        load.cache.evict("full", before)  # the oldest
        for name, make in (("new", load.fresh), ("half known", load.half), ("known", load.again)):
            claim = f"match + insert {TOKENS:,} tokens, {name}, {size:,} sequences"
            yield finding(claim, RUN_GOALS_US[cache], lambda make=make, load=load: load.run(make()))  # type: ignore[misc]


def evictions(cache: str, sizes: list[int]) -> Iterator[Finding]:
    """Evict one page in growing trees of one-page leaves."""
    load = Load(PAGE, new_cache(cache))
    for size in sizes:
        while load.cache.stats().entries < size:
            load.run(load.fresh())
        yield finding(f"evict 1 page, {size:,} nodes", EVICT_GOAL_US, load.evict_one)


def main() -> None:
    """Measures and prints; asserts nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="up to 100,000 sequences and 1,000,000 nodes")
    parser.add_argument("--cache", choices=list(RUN_GOALS_US), default="radix", help="the plugin to measure")
    given = parser.parse_args()
    sizes = slice(2 + given.full)
    gc.disable()
    found = [
        *sequences(given.cache, [1_000, 10_000, 100_000][sizes]),
        *evictions(given.cache, [10_000, 100_000, 1_000_000][sizes]),
    ]
    print_findings(found, Console(stderr=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    about = {"cache": given.cache, "page_size": PAGE, "peak_rss_mib": peak}
    print(json.dumps({"goals": [one.as_data() for one in found], **about}, indent=1))


if __name__ == "__main__":
    main()
