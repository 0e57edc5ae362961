"""Where a decode step's time goes: host time by part of the loop, kernels by name, and how long the GPU idles.

    python -m bench.gpu.profile [--batch 1 64 256] [--prompt 1024] [--steps 64] [--runner cuda-full]
                                [--trace FILE] [--out FILE]
    python -m bench.gpu.profile --rounds        the 256 requests of G1: how many steps of which kind, and their time

Two runs a batch: one with clocks around the loop's parts, one under torch's profiler, for the GPU alone.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu.engine import Bare
from bench.gpu.serve import SHAPES, fixed, made_up, varied
from srtkit.engine.buffers import StepBuffers
from srtkit.engine.loop import EngineLoop
from srtkit.engine.runner import ModelRunner, TargetProgram
from srtkit.engine.state import DeviceState
from srtkit.scheduler.scheduler import Scheduler
from srtkit.spec.step_plan import StepPlan
from srtkit_plugin_graph_cuda.pieces import Pieces

PARTS: dict[str, tuple[type, str]] = {
    "turn": (EngineLoop, "turn"),
    "absorb": (EngineLoop, "_absorb"),
    "plan": (Scheduler, "plan"),
    "forward": (ModelRunner, "forward"),
    "forward/stage": (TargetProgram, "stage"),
    "forward/stage/apply": (DeviceState, "apply"),
    "forward/stage/build": (StepBuffers, "build"),
    "forward/before": (TargetProgram, "before"),
    "forward/launch": (Pieces, "replay"),
    "forward/sample": (ModelRunner, "_sample"),
    "collect (waits)": (ModelRunner, "collect"),
    "commit": (Scheduler, "commit"),
    "send": (EngineLoop, "_send"),
}
SKIPPED = 10
"""Decode steps at both ends that are not counted."""


class Clocks:
    """Seconds of every call of the parts, while entered."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = defaultdict(list)
        self._saved: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> Clocks:
        for name, (owner, method) in PARTS.items():
            self._saved[name] = getattr(owner, method)
            setattr(owner, method, self._timed(name, self._saved[name]))
        return self

    def __exit__(self, *_: object) -> None:
        for name, (owner, method) in PARTS.items():
            setattr(owner, method, self._saved[name])

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        taken = self.taken[name]

        def timed(*args: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*args, **named)
            finally:
                taken.append(time.perf_counter() - begin)

        return timed


def host(one: Bare, batch: int, n_prompt: int, steps: int) -> dict[str, float]:
    """Microseconds of each part in a decode step, the median over steps."""
    with Clocks() as clocks:
        one.seconds(fixed(batch, n_prompt, steps, 1))
    return {
        name: round(statistics.median(taken[-steps + SKIPPED : -SKIPPED]) * 1e6)
        for name, taken in clocks.taken.items()
        if len(taken) >= steps
    }


def device(one: Bare, batch: int, n_prompt: int, steps: int, trace: Path) -> dict[str, Any]:
    """Of the last decode steps: the GPU's idle share, and the kernels with most time a step."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as profiler:
        one.seconds(fixed(batch, n_prompt, steps, 2))
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    work = sorted(
        ((one["ts"], one["dur"], one["name"], one["cat"]) for one in events if one.get("cat", "") in GPU_WORK), key=str
    )
    work.sort(key=lambda one: one[0])
    launches = [one["ts"] for one in events if one.get("name") == "cudaGraphLaunch"]
    # From one sampled token to another, both in the middle of decoding.
    marks = [ts for ts, _, name, _ in work if "Memcpy DtoH" in name]
    begin, end = marks[-steps + SKIPPED], marks[-SKIPPED]
    n_steps = steps - 2 * SKIPPED
    inside = [one for one in work if begin <= one[0] < end]
    busy, reached = 0.0, begin
    for ts, dur, *_ in inside:
        busy += max(0.0, ts + dur - max(reached, ts))
        reached = max(reached, ts + dur)
    total: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for _, dur, name, _ in inside:
        total[_short(name)][0] += 1
        total[_short(name)][1] += dur
    ranked = sorted(total.items(), key=lambda one: -one[1][1])[:24]
    return {
        "us_per_step": round((end - begin) / n_steps, 1),
        "idle_share": round(1 - busy / (end - begin), 4),
        "graph_launches": sum(1 for ts in launches if begin <= ts < end) / n_steps,
        "launches": round(len(inside) / n_steps, 1),
        "kernels": {name: [round(n / n_steps, 2), round(us / n_steps, 1)] for name, (n, us) in ranked},
    }


def rounds(one: Bare) -> dict[str, Any]:
    """Steps, seconds and milliseconds a step of G1: mixed ones, and decode steps by captured rows."""
    keys: list[str] = []
    forward, turn = ModelRunner.forward, EngineLoop.turn
    spent: dict[str, list[float]] = defaultdict(list)

    def noting(self: ModelRunner, plan: StepPlan) -> Any:
        keys.append(f"decode {plan.key.rows:3}" if plan.key.q_len else "mixed")
        return forward(self, plan)

    def timed(self: EngineLoop) -> None:
        begin = time.perf_counter()
        turn(self)
        spent[keys[-1] if keys else "mixed"].append(time.perf_counter() - begin)

    one.seconds(varied())
    ModelRunner.forward, EngineLoop.turn = noting, timed  # type: ignore[method-assign]
    try:
        whole = one.seconds(varied())
    finally:
        ModelRunner.forward, EngineLoop.turn = forward, turn  # type: ignore[method-assign]
    lines = {
        key: {"steps": len(taken), "s": round(sum(taken), 3), "ms": round(statistics.mean(taken) * 1e3, 2)}
        for key, taken in sorted(spent.items())
    }
    return {"s": round(whole, 3), "steps": lines}


GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def _short(name: str) -> str:
    return re.sub(r"<.*|\(.*", "", name.replace("void ", ""))[:70]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 64, 256])
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--runner", nargs="*", default=["cuda-full", "eager"])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--rounds", action="store_true")
    parser.add_argument("--trace", type=Path, help="keep the profiler's trace of the last batch here")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, made_up(Path(name), arguments.shape, arguments.runner) as one:
        if arguments.rounds:
            found["G1"] = rounds(one)
            print(json.dumps(found), flush=True)
        for batch in () if arguments.rounds else arguments.batch:
            one.seconds(fixed(batch, arguments.prompt, 8, 0))
            found[str(batch)] = {
                "host_us": host(one, batch, arguments.prompt, arguments.steps),
                "gpu": device(
                    one, batch, arguments.prompt, arguments.steps, arguments.trace or Path(name) / "trace.json"
                ),
            }
            print(batch, json.dumps(found[str(batch)]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
