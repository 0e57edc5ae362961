"""What a decode step costs the scheduler: 256 running sequences, with a cache that shares and without.

Plan and commit; no model runs, a step's tokens are made up. Schedulers take turns, step by step, so that all see the
same machine. Half of each prompt is one prefix of all. Table to standard error, JSON to standard output.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from importlib.metadata import entry_points

import numpy as np
from rich.console import Console

from bench.goals import Finding, print_findings
from srtkit.scheduler.limits import SchedulerLimits
from srtkit.scheduler.scheduler import Scheduler, StepOutput
from srtkit.spec.kv import FULL
from srtkit.spec.messages import Sampling, Submit
from srtkit.spec.prefix_cache import PrefixCache, PrefixCacheBuild, PrefixCacheDescriptor

ROWS, PROMPT, PAGE, STEPS = 256, 512, 16, 200
PLAIN = "chunk"
SHARING = ("radix", "radix-native")
GOAL_MS = 0.1


def cache_of(name: str) -> PrefixCache:
    """A cache with its default options."""
    (found,) = entry_points(group="srtkit.prefix_cache.v1", name=name)
    descriptor: PrefixCacheDescriptor = found.load().srtkit_prefix_cache()
    return descriptor.build(PrefixCacheBuild(PAGE, (FULL,), descriptor.options()))


def full_of_decoding(cache: PrefixCache, rows: int = ROWS) -> Scheduler:
    """A scheduler whose sequences have all computed their prompts."""
    pages = rows * 2 * (PROMPT + STEPS) // PAGE
    limits = SchedulerLimits(rows, 8192, PROMPT + 2 * STEPS, PAGE, chunk_tokens=8192, pools={FULL: pages})
    scheduler = Scheduler(limits, cache, lambda wanted: wanted)
    draw = np.random.default_rng(0)
    common = draw.integers(0, 1000, PROMPT // 2)
    for rid in range(rows):
        ids = np.concatenate((common, draw.integers(0, 1000, PROMPT // 2))).astype("<i4")
        scheduler.submit(Submit(rid, ids.tobytes(), Sampling(temperature=0.0, max_tokens=2 * STEPS)))
    while len(scheduler.columns.decode_rows()) < rows:
        step(scheduler)
    return scheduler


def step(scheduler: Scheduler) -> float:
    """Plan and commit one step; milliseconds of CPU time."""
    begin = time.thread_time()
    plan = scheduler.plan()
    planned = time.thread_time() - begin
    output = StepOutput(np.full(plan.rows, 7, np.int32))
    begin = time.thread_time()
    scheduler.commit(plan, output)
    return 1e3 * (planned + time.thread_time() - begin)


def main() -> None:
    """Measure all and print."""
    schedulers = {name: full_of_decoding(cache_of(name)) for name in (PLAIN, *SHARING)}
    gc.freeze()
    gc.disable()
    taken: dict[str, list[float]] = {name: [] for name in schedulers}
    for _ in range(STEPS):
        for name, scheduler in schedulers.items():
            taken[name].append(step(scheduler))
    median = {name: statistics.median(times) for name, times in taken.items()}
    findings = [
        Finding(f"{name} beside {PLAIN}, a step", "<", GOAL_MS, "ms", median[name] - median[PLAIN]) for name in SHARING
    ]
    print_findings(findings, Console(stderr=True))
    print(json.dumps({"step_ms": median, "findings": [one.as_data() for one in findings]}))


if __name__ == "__main__":
    main()
