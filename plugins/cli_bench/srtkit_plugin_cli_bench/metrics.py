"""The figures of a repeat and their spread over repeats. Pure arithmetic on traces."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from srtkit_plugin_cli_bench.trace import Trace

Figures = dict[str, float]


@dataclass(frozen=True)
class Spread:
    """A figure over the repeats."""

    median: float
    low: float
    high: float


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the closest ranks, as numpy's default. `values` must not be empty."""
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def figures(traces: Sequence[Trace], asked_tokens: int) -> Figures:
    """The figures of one repeat; names end in their unit, plain names are counts.

    Latencies are missing when nothing was observed to take them from. `short` counts answered requests
    with fewer than `asked_tokens` tokens. Throughput is over the time from first send to last event.
    """
    answered = [t for t in traces if t.error is None]
    found: Figures = {"ok": len(answered), "failed": len(traces) - len(answered)}
    if not answered:
        return found
    seconds = max(t.arrivals[-1] for t in answered) - min(t.sent for t in answered)
    output = sum(t.output_tokens for t in answered)
    prompt = sum(t.prompt_tokens for t in answered)
    found |= {
        "short": sum(t.output_tokens < asked_tokens for t in answered),
        "events": sum(len(t.arrivals) for t in answered),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "seconds": seconds,
        "output_tok_s": output / seconds,
        "total_tok_s": (output + prompt) / seconds,
    }
    cached = [t.cached_tokens for t in answered if t.cached_tokens is not None]
    if len(cached) == len(answered):
        found["cached_tokens"] = sum(cached)
    found |= _distribution("ttft", [t.ttft for t in answered if t.streamed])
    found |= _distribution("itl", [gap for t in answered for gap in t.gaps])
    tpots = [tpot for t in answered if (tpot := t.tpot) is not None]
    found |= _distribution("tpot", tpots)
    if any(tpots):  # all zero when every token came in one read of the socket
        found["decode_tok_s"] = 1 / statistics.fmean(tpots)
    return found


def summarise(repeats: Sequence[Figures]) -> dict[str, Spread]:
    """Median and range of every figure that all repeats have, in their order. `repeats` must not be empty."""
    names = [name for name in repeats[0] if all(name in repeat for repeat in repeats)]
    columns = {name: [repeat[name] for repeat in repeats] for name in names}
    return {name: Spread(statistics.median(xs), min(xs), max(xs)) for name, xs in columns.items()}


def _distribution(name: str, seconds: Sequence[float]) -> Figures:
    if not seconds:
        return {}
    return {
        f"{name}_mean_s": statistics.fmean(seconds),
        f"{name}_p50_s": percentile(seconds, 50),
        f"{name}_p99_s": percentile(seconds, 99),
    }
