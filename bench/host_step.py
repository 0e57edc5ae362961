"""What plan, staging, commit and send of a decode step of 128 and 256 rows cost the host, without a device.

Greedy rows with a sharing cache, as the key of a recorded step has them, memory of the device apart from the host's:
copies and lookups that a GPU would be given are done here by the CPU, and counted in "apply" and "build". No model
runs. Medians, and the tenth and ninetieth percentile; table to standard error, JSON to standard output.
`bench.gpu.profile` prints the parts that need a GPU beside these.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections import defaultdict

import numpy as np
import torch
from rich.console import Console

from bench.goals import Finding, print_findings
from bench.scheduler import STEPS, cache_of, full_of_decoding
from srtkit.engine.buffers import StepBuffers
from srtkit.engine.state import DeviceState
from srtkit.scheduler.scheduler import Scheduler, StepOutput
from srtkit.spec.kv import FULL
from srtkit.spec.messages import encode
from srtkit.spec.step_plan import StepPlan
from srtkit_plugin_platform_cpu import Options
from srtkit_plugin_platform_cpu.platform import CpuPlatform

GOALS_US = {"plan": 20, "apply": 20, "build": 40, "commit": 25, "send": 25}
"""Microseconds a step of 256 rows may take, of 300 with what is not measured here."""
SKIPPED = 4
"""Steps at the start that are not counted."""


class Apart(CpuPlatform):
    """A CPU that says its memory is not the host's."""

    def device(self, index: int) -> torch.device:
        """Some other than "cpu"."""
        return torch.device("meta", index)


class Engine:
    """What the loop has of a step, a launch and a model excepted. One step is in flight, as on a GPU."""

    def __init__(self, rows: int) -> None:
        self.scheduler: Scheduler = full_of_decoding(cache_of("radix-native"), rows)
        limits = self.scheduler.limits
        platform = Apart(Options())
        self.state, self.buffers = DeviceState(platform, limits), StepBuffers(platform, limits, (FULL,))
        self.taken: dict[str, list[float]] = defaultdict(list)
        self._before: StepPlan | None = None

    @torch.inference_mode()
    def step(self) -> None:
        """One step, its parts timed."""
        clock = [time.perf_counter()]
        plan = self.scheduler.plan()
        clock.append(time.perf_counter())
        self.state.apply(plan)
        clock.append(time.perf_counter())
        self.buffers.build(plan, self.state, recorded=True)
        clock.append(time.perf_counter())
        for name, begin, end in zip(GOALS_US, clock, clock[1:], strict=False):
            self.taken[name].append(1e6 * (end - begin))
        if self._before:
            output = StepOutput(np.full(self._before.rows, 7, np.int32))
            begin = time.perf_counter()
            deltas = self.scheduler.commit(self._before, output)
            committed = time.perf_counter()
            encode(deltas)
            self.taken["commit"].append(1e6 * (committed - begin))
            self.taken["send"].append(1e6 * (time.perf_counter() - committed))
        self._before = plan


def main() -> None:
    """Measure and print."""
    engines = {rows: Engine(rows) for rows in (128, 256)}
    gc.freeze()
    gc.disable()
    for _ in range(STEPS):
        for one in engines.values():
            one.step()
    findings = []
    for rows, one in engines.items():
        taken = {name: sorted(values[SKIPPED:]) for name, values in one.taken.items()}
        taken["all"] = sorted(map(sum, zip(*(values[SKIPPED:] for values in one.taken.values()), strict=False)))
        for name, values in taken.items():
            goal = GOALS_US.get(name, sum(GOALS_US.values()))
            low, high = values[len(values) // 10], values[-len(values) // 10]
            findings.append(Finding(f"{name}, {rows} rows", "<=", goal, "us", statistics.median(values), low, high))
    print_findings(findings, Console(stderr=True))
    print(json.dumps({"findings": [one.as_data() for one in findings]}))


if __name__ == "__main__":
    main()
