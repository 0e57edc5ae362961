"""`srt bench offline`: the same workloads through `srtkit.Engine` in this process. Knows no HTTP."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Protocol

from srtkit.spec.errors import ConfigError
from srtkit_plugin_cli_bench import facts, process, report, workloads
from srtkit_plugin_cli_bench.load import Plan, progress, run_workload, send_at_arrival
from srtkit_plugin_cli_bench.trace import Trace
from srtkit_plugin_cli_bench.workloads import Request, Workload


class Delta(Protocol):
    """What `Engine.astream` yields."""

    token_ids: Sequence[int]


class Completion(Protocol):
    """What `Engine.generate` returns for each prompt."""

    token_ids: Sequence[int]
    cached_tokens: int


class Engine(Protocol):
    """The part of `srtkit.Engine` that is measured."""

    def generate(self, prompts: list[list[int]], **sampling: Any) -> Sequence[Completion]: ...

    def astream(self, prompt: list[int], **sampling: Any) -> AsyncIterator[Delta]: ...

    def close(self) -> None: ...


class StreamDriver:
    """One `astream` a request: latencies as a caller of the Python API sees them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runner = asyncio.Runner()  # one event loop for all repeats, as an application would have

    def reset(self) -> None:
        """Nothing to do: prompts differ from repeat to repeat."""

    def run(self, requests: list[Request]) -> list[Trace]:
        """Streams every request from its arrival time on."""
        sends = [partial(self._send, request) for request in requests]
        return self._runner.run(send_at_arrival(requests, sends))

    def close(self) -> None:
        """Closes the event loop."""
        self._runner.close()

    async def _send(self, request: Request) -> Trace:
        """A stream does not tell how much came from the cache."""
        prompt = list(request.prompt)
        trace = Trace(time.perf_counter(), prompt_tokens=len(prompt))
        async for delta in self._engine.astream(prompt, **_sampling(request)):
            if delta.token_ids:
                trace.arrivals.append(time.perf_counter())
                trace.output_tokens += len(delta.token_ids)
        if not trace.arrivals:
            trace.error = "no output"
        return trace


class BatchDriver:
    """One `generate` for all requests of a repeat: throughput, no latencies."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def reset(self) -> None:
        """Nothing to do: prompts differ from repeat to repeat."""

    def run(self, requests: list[Request]) -> list[Trace]:
        """All at once; arrival times must be zero."""
        assert not any(request.arrival for request in requests)
        prompts = [list(request.prompt) for request in requests]
        sent = time.perf_counter()
        completions = self._engine.generate(prompts, **_sampling(requests[0]))
        ended = time.perf_counter()
        return [
            Trace(sent, [ended], len(prompt), len(done.token_ids), done.cached_tokens, streamed=False)
            for prompt, done in zip(prompts, completions, strict=True)
        ]

    def close(self) -> None:
        """Nothing to close."""


def bench_offline(args: argparse.Namespace) -> int:
    """Runs `srt bench offline`; raises SrtError when the engine cannot be built."""
    chosen = workloads.select(args.workload)
    if args.api == "generate":
        chosen = _without_arrivals(chosen, named="all" not in args.workload)
    result = _measure(args, chosen)
    if args.json:
        report.write_json(result, args.json)
    report.print_tables(result, sys.stdout)
    return 1 if any(found["errors"] for found in result["workloads"].values()) else 0


def _measure(args: argparse.Namespace, chosen: list[Workload]) -> dict[str, Any]:
    plan = Plan.of(args)
    started = time.perf_counter()
    engine = _build(args.config, args.set)
    ready_seconds = time.perf_counter() - started
    progress(f"engine built in {ready_seconds:.2f} s")
    pid = os.getpid()
    ready = process.pss_bytes(pid)
    driver = StreamDriver(engine) if args.api == "astream" else BatchDriver(engine)
    with closing(engine), closing(driver), process.PeakPss(pid) as peak:
        measured = {w.name: run_workload(w, plan, driver) for w in chosen}
        peak.sample()
        high_water = process.peak_rss_bytes(pid)
    return {
        "schema": 1,
        "kind": "offline",
        "label": f"{args.config} through Engine.{args.api}",
        "facts": facts.environment(),
        "settings": plan.as_data(),
        "startup": {"ready_s": ready_seconds},
        "memory": {"pss_ready_bytes": ready, "pss_peak_bytes": peak.bytes, "rss_peak_bytes": high_water},
        "workloads": measured,
    }


def _build(config: str, overrides: list[str]) -> Engine:
    """Imports srtkit's engine only now: `srt bench serve` never needs it in this process."""
    import srtkit

    engine: Engine = srtkit.Engine.from_config(config, overrides=dict(item.split("=", 1) for item in overrides))
    return engine


def _without_arrivals(chosen: list[Workload], named: bool) -> list[Workload]:
    """One call has no arrival times: such a workload is left out of `all`, and refused when it was named."""
    timed = [w.name for w in chosen if w.rate is not None]
    if timed and named:
        raise ConfigError(f"--workload {timed[0]}", "one call of generate has no arrival times", "use --api astream")
    for name in timed:
        progress(f"{name} left out: one call of generate has no arrival times")
    return [w for w in chosen if w.rate is None]


def _sampling(request: Request) -> dict[str, Any]:
    return {"max_tokens": request.max_tokens, "temperature": 0.0, "ignore_eos": True}
