"""What telling a router costs the scheduler: match + insert + release with `prefix_cache:events` and without.

Half of the pages of each sequence are new. Figures are CPU time of the scheduler's thread and, beside it, of the thread
that publishes; one subscriber listens. Also the time that a new one waits for a snapshot. Table to standard error, JSON
to standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import CacheKey, PrefixCache, PrefixCacheBuild
from srtkit_conformance.kits.needs import needs_of
from srtkit_plugin_cache_events import EventsOptions, srtkit_prefix_cache
from srtkit_plugin_cache_events.client import Follower
from srtkit_plugin_cache_radix import RadixOptions
from srtkit_plugin_cache_radix import build as build_radix

PAGE = 16
TOKENS = 2048
SAMPLES = 1000


def radix(*, events: bool) -> PrefixCache:
    """The inner cache alone."""
    return build_radix(PrefixCacheBuild(PAGE, (FULL,), RadixOptions(events=events)))


def around_radix() -> PrefixCache:
    """The same with everything published."""
    descriptor, options = srtkit_prefix_cache(), EventsOptions()
    request = PrefixCacheBuild(PAGE, (FULL,), options)
    needs = needs_of(descriptor, options, {"prefix_cache": request})
    return descriptor.build(PrefixCacheBuild(PAGE, (FULL,), options, needs=needs))


def run(cache: PrefixCache, take: Callable[[], object], tokens: int) -> dict[str, float]:
    """Medians in µs of CPU time: of the scheduler's thread, and per sequence of all others of this process."""
    random = np.random.default_rng(1)
    shared = random.integers(0, 150_000, tokens // 2, dtype=np.int32)
    pages, took = np.arange(1, tokens // PAGE + 1, dtype=np.int32), []
    process, thread = time.process_time(), time.thread_time()
    for _ in range(SAMPLES):
        key = CacheKey(np.concatenate([shared, random.integers(0, 150_000, tokens - len(shared), dtype=np.int32)]))
        before = time.thread_time()
        lease, _ = cache.insert(cache.match(key), key, {"full": pages}, tokens)
        cache.release(lease)
        take()
        took.append(time.thread_time() - before)
    others = (time.process_time() - process) - (time.thread_time() - thread)
    return {"scheduler_us": 1e6 * statistics.median(took), "others_us": 1e6 * max(0.0, others) / SAMPLES}


def measured(tokens: int) -> dict[str, dict[str, float]]:
    """By setup, for sequences of that length."""
    silent, telling = radix(events=False), radix(events=True)
    found = {"radix": run(silent, lambda: None, tokens), "radix, hashing": run(telling, telling.events, tokens)}
    cache = around_radix()
    where = cache.stats().extra["events"]
    follower = Follower({"a": (where["endpoint"], where["replay"])}, check_seconds=60)
    while not follower.views["a"].current:
        follower.poll(0.01)
    found["events around radix"] = run(cache, lambda: None, tokens)
    while len(follower.views["a"].hashes) < cache.stats().cached_pages["full"]:
        follower.poll(0.01)
    follower.close()
    found["events around radix"] |= snapshot(cache)
    cache.close()
    return found


def snapshot(cache: PrefixCache) -> dict[str, float]:
    """How long a new router waits for the whole, over the loopback."""
    where = cache.stats().extra["events"]
    before = time.perf_counter()
    follower = Follower({"a": (where["endpoint"], where["replay"])})
    while not follower.views["a"].current:
        follower.poll(0.001)
    took = time.perf_counter() - before
    pages = len(follower.views["a"].hashes)
    follower.close()
    return {"snapshot_pages": pages, "snapshot_ms": 1e3 * took}


def main() -> None:
    """Measures and prints; asserts nothing."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found: dict[str, Any] = {str(tokens): measured(tokens) for tokens in (2 * PAGE, TOKENS)}
    table = Table("tokens", "cache", "scheduler, µs", "other threads, µs", "snapshot")
    for tokens, rows in found.items():
        for name, row in rows.items():
            whole = f"{row['snapshot_pages']:,} pages in {row['snapshot_ms']:.0f} ms" if "snapshot_ms" in row else ""
            table.add_row(tokens, name, f"{row['scheduler_us']:.1f}", f"{row['others_us']:.1f}", whole)
    Console(stderr=True).print(table)
    print(json.dumps({"page_size": PAGE, "samples": SAMPLES, "by_tokens": found}, indent=1))


if __name__ == "__main__":
    main()
