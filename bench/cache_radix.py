"""The radix prefix cache is quick, and as quick in a large tree as in a small one.

`--full` goes up to 100,000 sequences and 1,000,000 nodes (minutes, 2 GB). Times are CPU time of the thread, so a
busy machine disturbs them little; garbage collection is off, as in the engine's loop. Table to standard error,
JSON to standard output.
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

import numpy as np
from rich.console import Console

from bench.goals import Finding, print_findings
from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import CacheKey, PrefixCacheBuild
from srtkit.spec.step_plan import Ints
from srtkit_plugin_cache_radix import RadixOptions, build

PAGE = 16
TOKENS = 2048
SHARED = 1024
SAMPLES = 2000
RUN_GOAL_US = 60
EVICT_GOAL_US = 20


@dataclass
class Load:
    """Makes sequences of `tokens` tokens and runs them through a cache as a scheduler would."""

    tokens: int
    known: list[Ints] = field(default_factory=list)
    next_page: int = 1

    def __post_init__(self) -> None:
        self.cache = build(PrefixCacheBuild(PAGE, (FULL,), RadixOptions()))
        self.random = np.random.default_rng(1)

    def fresh(self) -> Ints:
        """Token ids nobody has used."""
        return self.random.integers(0, 150_000, self.tokens, dtype=np.int32)

    def again(self) -> Ints:
        """A stored sequence."""
        return self.known[int(self.random.integers(len(self.known)))]

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


def finding(claim: str, goal: float, timed: Callable[[], float]) -> Finding:
    """The median, and the 1st and 99th percentile as its range, in µs."""
    micros = sorted(1e6 * timed() for _ in range(SAMPLES))
    low, high = micros[SAMPLES // 100], micros[-1 - SAMPLES // 100]
    return Finding(claim, "<=", goal, "µs", statistics.median(micros), low, high)


def sequences(sizes: list[int]) -> Iterator[Finding]:
    """Match + insert in growing trees: nothing known, half known, all known."""
    load = Load(TOKENS)
    for size in sizes:
        while len(load.known) < size:
            load.known.append(load.fresh())
            load.run(load.known[-1])
        for name, make in (("new", load.fresh), ("half known", load.half), ("known", load.again)):
            claim = f"match + insert {TOKENS:,} tokens, {name}, {size:,} sequences"
            yield finding(claim, RUN_GOAL_US, lambda make=make: load.run(make()))  # type: ignore[misc]


def evictions(sizes: list[int]) -> Iterator[Finding]:
    """Evict one page in growing trees of one-page leaves."""
    load = Load(PAGE)
    for size in sizes:
        while load.cache.stats().entries < size:
            load.run(load.fresh())
        yield finding(f"evict 1 page, {size:,} nodes", EVICT_GOAL_US, load.evict_one)


def main() -> None:
    """Measures and prints; asserts nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="up to 100,000 sequences and 1,000,000 nodes")
    full = parser.parse_args().full
    gc.disable()
    found = [*sequences([1_000, 10_000, 100_000][: 2 + full]), *evictions([10_000, 100_000, 1_000_000][: 2 + full])]
    print_findings(found, Console(stderr=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"goals": [one.as_data() for one in found], "page_size": PAGE, "peak_rss_mib": peak}, indent=1))


if __name__ == "__main__":
    main()
