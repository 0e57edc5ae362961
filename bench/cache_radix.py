"""Times the radix prefix cache: match + insert of 2,048-token sequences, and eviction of one page, against tree size.

    python bench/cache_radix.py [--full] [--json FILE]

Prints a table and one JSON line. Garbage collection is off while timing, as it is in the engine's loop.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import CacheKey, PrefixCache, PrefixCacheBuild
from srtkit.spec.step_plan import Ints
from srtkit_plugin_cache_radix import RadixOptions, build

PAGE = 16
TOKENS = 2048
SHARED = 1024
SAMPLES = 2000


class Load:
    """Makes sequences and page ids, and runs them through a cache as a scheduler would."""

    def __init__(self, cache: PrefixCache, tokens: int) -> None:
        self.cache = cache
        self.random = np.random.default_rng(1)
        self.tokens = tokens
        self.next_page = 1
        self.known: list[Ints] = []

    def fresh(self) -> Ints:
        """Token ids nobody has used."""
        return self.random.integers(0, 150_000, self.tokens, dtype=np.int32)

    def run(self, ids: Ints) -> float:
        """Admit, commit and end one sequence; returns the seconds of match + insert."""
        pages = np.arange(self.next_page, self.next_page + self.tokens // PAGE, dtype=np.int32)
        self.next_page += len(pages)
        whole, admitted = CacheKey(ids), CacheKey(ids, limit=len(ids) - 1)
        before = time.perf_counter()
        lease = self.cache.match(admitted)
        pages[: len(lease.pages["full"])] = lease.pages["full"]
        lease, _ = self.cache.insert(lease, whole, {"full": pages}, len(ids))
        seconds = time.perf_counter() - before
        self.cache.release(lease)
        return seconds

    def fill(self, sequences: int) -> None:
        """Store that many sequences in all."""
        for _ in range(sequences - len(self.known)):
            self.known.append(self.fresh())
            self.run(self.known[-1])

    def half(self) -> Ints:
        """Begins as a stored sequence, goes on by itself."""
        ids = self.fresh()
        ids[:SHARED] = self.known[int(self.random.integers(len(self.known)))][:SHARED]
        return ids

    def again(self) -> Ints:
        """A stored sequence."""
        return self.known[int(self.random.integers(len(self.known)))]


def micros(timed: Callable[[], float], samples: int = SAMPLES) -> dict[str, float]:
    """Median and 99th percentile in µs."""
    seconds = [timed() for _ in range(samples)]
    return {name: round(1e6 * float(np.percentile(seconds, at)), 1) for name, at in (("median", 50), ("p99", 99))}


def new_cache() -> PrefixCache:
    """An empty cache with the default options."""
    return build(PrefixCacheBuild(PAGE, (FULL,), RadixOptions()))


def time_sequences(sizes: list[int]) -> list[dict[str, object]]:
    """Match + insert at growing trees: nothing known, half known, all known."""
    load, rows = Load(new_cache(), TOKENS), []
    for size in sizes:
        load.fill(size)
        cases = (("new", load.fresh), ("half known", load.half), ("known", load.again))
        for name, make in cases:
            rows.append({"what": f"match + insert, {name}", "sequences": size, **_timed_runs(load, make)})
    return rows


def _timed_runs(load: Load, make: Callable[[], Ints]) -> dict[str, float]:
    return micros(lambda: load.run(make()))


def time_eviction(sizes: list[int]) -> list[dict[str, object]]:
    """Evict one page at growing trees of one-page leaves."""
    load, rows = Load(new_cache(), PAGE), []
    for size in sizes:
        load.fill(size)
        load.known.clear()
        missing = max(0, size - load.cache.stats().entries)
        for _ in range(missing + SAMPLES):
            load.run(load.fresh())
        rows.append({"what": "evict 1 page", "nodes": load.cache.stats().entries, **micros(lambda: _evict(load.cache))})
    return rows


def _evict(cache: PrefixCache) -> float:
    before = time.perf_counter()
    cache.evict("full", 1)
    return time.perf_counter() - before


def main() -> None:
    """Runs everything and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--full", action="store_true", help="up to 100,000 sequences and 1,000,000 nodes (2 minutes, 2 GB)"
    )
    parser.add_argument("--json", type=Path, help="write the JSON here too")
    args = parser.parse_args()
    gc.disable()
    more = args.full
    rows = time_sequences([1_000, 10_000] + [100_000] * more) + time_eviction([10_000, 100_000] + [1_000_000] * more)
    print(f"{'':34}{'tree':>12}{'median µs':>12}{'p99 µs':>12}")
    for row in rows:
        tree = row.get("sequences", row.get("nodes"))
        print(f"{row['what']:34}{tree:>12,}{row['median']:>12}{row['p99']:>12}")
    report = {
        "bench": "cache_radix",
        "page_size": PAGE,
        "tokens": TOKENS,
        "samples": SAMPLES,
        "python": platform.python_version(),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "rows": rows,
    }
    print(json.dumps(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
