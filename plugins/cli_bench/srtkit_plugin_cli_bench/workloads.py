"""The four workloads and the requests they consist of, from a seed. Knows nothing of servers or clocks."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Workload:
    """Counts are of requests and tokens; `rate` is the mean of Poisson arrivals a second, None: all at once."""

    name: str
    requests: int
    prefix: int
    prompt: int
    output: int
    rate: float | None = None


@dataclass(frozen=True)
class Request:
    """One request: prompt token ids, output length, and when it is sent in seconds after the repeat's start."""

    prompt: tuple[int, ...]
    max_tokens: int
    arrival: float = 0.0


WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        Workload("W1", requests=1, prefix=0, prompt=128, output=256),
        Workload("W2", requests=32, prefix=0, prompt=256, output=128),
        Workload("W3", requests=32, prefix=1024, prompt=32, output=32),
        Workload("W4", requests=64, prefix=0, prompt=128, output=64, rate=4.0),
    )
}

_WARMUP_REQUESTS = 8


def select(names: list[str]) -> list[Workload]:
    """The named workloads in their own order; `all` means every one."""
    return [w for name, w in WORKLOADS.items() if "all" in names or name in names]


def warmup(workload: Workload) -> Workload:
    """A smaller edition that runs before anything is measured."""
    return replace(workload, requests=min(workload.requests, _WARMUP_REQUESTS))


def generate(workload: Workload, seed: int, repeat: str, ids: range) -> list[Request]:
    """The requests of one repeat; the same arguments give the same requests on every machine.

    Prompts are drawn from `ids` and share nothing but the workload's prefix, which differs from
    repeat to repeat. Arrivals do not depend on `ids` or on lengths; the first one is at 0.
    """
    tokens = random.Random(f"srt bench/{workload.name}/prompts/{seed}/{repeat}")
    clock = random.Random(f"srt bench/{workload.name}/arrivals/{seed}/{repeat}")
    prefix = tokens.choices(ids, k=workload.prefix)
    requests, arrival = [], 0.0
    for _ in range(workload.requests):
        prompt = prefix + tokens.choices(ids, k=workload.prompt)
        requests.append(Request(tuple(prompt), workload.output, arrival))
        if workload.rate is not None:
            arrival += clock.expovariate(workload.rate)
    return requests


def prefix_only(workload: Workload, requests: list[Request]) -> Request:
    """The request that puts the shared prefix of `requests` into the cache: one output token."""
    return Request(requests[0].prompt[: workload.prefix], 1)
