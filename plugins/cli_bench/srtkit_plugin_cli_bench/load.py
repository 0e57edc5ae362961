"""Runs a workload on any driver: warm-up, repeats, arrivals. Knows neither HTTP nor the engine."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from srtkit_plugin_cli_bench.metrics import Figures, figures, summarise
from srtkit_plugin_cli_bench.trace import Trace
from srtkit_plugin_cli_bench.workloads import Request, Workload, generate, prefix_only, warmup

# A prompt may share a BOS token or an accidental first token with an earlier one; more than this is a warm cache.
_ACCIDENTAL_TOKENS = 8

Send = Callable[[], Awaitable[Trace]]


class Driver(Protocol):
    """How the requests of one repeat reach what is measured."""

    def reset(self) -> None:
        """Called before every repeat, outside the clock."""
        ...

    def run(self, requests: list[Request]) -> list[Trace]:
        """Sends every request at its arrival time and waits for all; traces in the order of `requests`."""
        ...


@dataclass(frozen=True)
class Plan:
    """How often and with which inputs a workload is run."""

    repeats: int
    warmup: int
    seed: int
    ids: range
    warm_prefix: bool

    @classmethod
    def of(cls, args: argparse.Namespace) -> Plan:
        """From the arguments that both commands share."""
        return cls(args.repeats, args.warmup, args.seed, args.token_ids, args.warm_prefix)

    def as_data(self) -> dict[str, Any]:
        """For the JSON file."""
        return asdict(self) | {"ids": [self.ids.start, self.ids.stop]}


async def send_at_arrival(requests: Sequence[Request], sends: Sequence[Send]) -> list[Trace]:
    """For drivers that send requests one by one: calls each of `sends` at its request's arrival time."""
    clock = asyncio.get_running_loop().time
    start = clock()

    async def one(request: Request, send: Send) -> Trace:
        wait = start + request.arrival - clock()
        if wait > 0:
            await asyncio.sleep(wait)
        return await send()

    return await asyncio.gather(*(one(request, send) for request, send in zip(requests, sends, strict=True)))


def run_workload(workload: Workload, plan: Plan, driver: Driver) -> dict[str, Any]:
    """Warms up, measures, and returns definition, summary, repeats, errors and notes as plain data."""
    errors: list[str] = []
    for index in range(plan.warmup):
        errors += _errors(driver.run(generate(warmup(workload), plan.seed, f"warm-up {index}", plan.ids)))
    repeats: list[Figures] = []
    for index in range(plan.repeats):
        driver.reset()
        requests = generate(workload, plan.seed, str(index), plan.ids)
        if workload.prefix and plan.warm_prefix:
            errors += _errors(driver.run([prefix_only(workload, requests)]))
        traces = driver.run(requests)
        errors += _errors(traces)
        repeats.append(figures(traces, workload.output))
        progress(f"{workload.name} repeat {index + 1} of {plan.repeats}: {_brief(repeats[-1])}")
    return {
        "definition": asdict(workload) | {"warm_prefix": plan.warm_prefix},
        "summary": {name: asdict(spread) for name, spread in summarise(repeats).items()},
        "repeats": repeats,
        "errors": sorted(set(errors)),
        "notes": _notes(workload, plan, repeats),
    }


def progress(text: str) -> None:
    """One line for whoever waits; standard output is kept for the result."""
    print(text, file=sys.stderr, flush=True)


def _errors(traces: list[Trace]) -> list[str]:
    return [trace.error for trace in traces if trace.error]


def _brief(found: Figures) -> str:
    if not found["ok"]:
        return "every request failed"
    return f"{found['output_tok_s']:.1f} output tok/s in {found['seconds']:.2f} s, {found['failed']:.0f} failed"


def _notes(workload: Workload, plan: Plan, repeats: list[Figures]) -> list[str]:
    """What a reader must know before believing the figures."""
    notes = []
    if len(repeats) < 3:
        notes.append("fewer than 3 repeats: not a result to quote")
    if any(repeat["failed"] for repeat in repeats):
        notes.append("requests failed: the figures are of those that were answered")
    if any(repeat.get("short") for repeat in repeats):
        notes.append("the server ended some outputs early: it does not honour ignore_eos, or the context is too short")
    sharing = workload.requests - (0 if plan.warm_prefix else 1)
    expected = sharing * workload.prefix + _ACCIDENTAL_TOKENS * workload.requests
    if any(repeat.get("cached_tokens", 0) > expected for repeat in repeats):
        notes.append("more prompt tokens came from the cache than this workload shares: flush it or change --seed")
    return notes
