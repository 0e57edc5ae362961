"""How much of a trace each eviction policy reuses, beside the best that knowing the future could.

A made-up trace of chats, batch jobs and agents (`prefix_trace/workload.py` names its sources) goes through the real
cache with every policy, with five sizes of the pool. They are multiples of the working set: the fewest pages with which
the optimum loses nothing. Table and plot to standard error, JSON to standard output. Same seed, same figures.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from bench.goals import Finding
from bench.prefix_trace.generate import Trace, make_trace
from bench.prefix_trace.optimum import Future
from bench.prefix_trace.replay import Replay, new_cache

PAGE = 16
POLICIES = ("lru", "lfu", "fifo", "slru", "priority")
SIZES = (0.3, 0.5, 0.75, 1.0, 2.0)
BAR = 60
Rates = Mapping[str, Mapping[str, Sequence[float]]]
"""Of each policy and of the optimum, of each kind of request and of "all": tokens hit in % of tokens asked, by size."""


def hits_of_all(cache: str, trace: Trace, future: Future, pools: Sequence[int]) -> dict[str, list[list[int]]]:
    """Of each policy and of the optimum, by size: the tokens hit of each request."""
    hits = {"optimum": [future.hits(pages) for pages in pools]}
    for policy in POLICIES:
        hits[policy] = [Replay(new_cache(cache, policy, PAGE), PAGE, pages).run(trace) for pages in pools]
    return hits


def rate(trace: Trace, hits: Sequence[int], kind: str) -> float:
    """Tokens hit in % of tokens asked, of one kind of request or of "all"."""
    chosen = [(hit, one.prompt) for hit, one in zip(hits, trace.requests, strict=True) if kind in ("all", one.kind)]
    return 100 * sum(hit for hit, _ in chosen) / sum(prompt for _, prompt in chosen)


def rates_of(trace: Trace, hits: Mapping[str, Sequence[Sequence[int]]]) -> Rates:
    """Per kind."""
    kinds = ("all", *trace.about())
    return {name: {kind: [rate(trace, one, kind) for one in rows] for kind in kinds} for name, rows in hits.items()}


def print_rates(rates: Rates, kind: str, pools: Sequence[int], unlimited: float, console: Console) -> None:
    """One row a policy, one column a size. The optimum is that of all kinds together: in one it can be surpassed."""
    headings = [f"{size:g} × ws\n{pages:,}" for size, pages in zip(SIZES, pools, strict=True)]
    table = Table(kind, *headings, title=f"tokens reused of {kind} prompts, in %")
    best = rates["optimum"]["all"]
    for name, kinds in rates.items():
        row = [f"{one:.1f}" for one in kinds[kind]]
        if kind == "all" and name != "optimum":
            row = [f"{text} ({one / most:.0%})" for text, one, most in zip(row, kinds[kind], best, strict=True)]
        table.add_row(name, *row)
    table.add_row("unlimited", *[f"{unlimited:.1f}"] * len(pools))
    console.print(table)


def plot_rates(rates: Rates, ceiling: float, console: Console) -> None:
    """Bars, a group for every size; a full one is the unlimited cache's rate."""
    for number, size in enumerate(SIZES):
        console.print(f"{size:g} × working set", highlight=False)
        for name, kinds in rates.items():
            filled = round(BAR * kinds["all"][number] / ceiling)
            bar = "█" * filled + "·" * (BAR - filled)
            console.print(f"  {name:<9}{bar} {kinds['all'][number]:5.1f}", highlight=False)


def findings(rates: Rates) -> list[Finding]:
    """Each policy against the optimum: a bound that nothing can pass, no goal that a policy should reach."""
    found = []
    for name in POLICIES:
        for size, value, best in zip(SIZES, rates[name]["all"], rates["optimum"]["all"], strict=True):
            found.append(Finding(f"hit rate of {name}, {size:g} × working set", "<=", best, "%", value))
    return found


def main() -> None:
    """Measures and prints; asserts nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", choices=("radix", "radix-native"), default="radix", help="the plugin to replay with")
    parser.add_argument("--requests", type=int, default=12_000, help="about so many (default 12,000: an hour's)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.monotonic()
    trace = make_trace(given.seed, given.requests)
    future = Future(trace, PAGE)
    working_set = future.working_set()
    pools = [round(size * working_set) for size in SIZES]
    if pools[0] < future.most_running:
        parser.error(
            f"{future.most_running} pages run at once, more than the smallest pool of {pools[0]}: ask for more"
        )
    unlimited = rates_of(trace, {"unlimited": [future.hits()]})["unlimited"]
    rates = rates_of(trace, hits_of_all(given.cache, trace, future, pools))
    console = Console(stderr=True)
    for kind, (most,) in unlimited.items():
        print_rates(rates, kind, pools, most, console)
    plot_rates(rates, unlimited["all"][0], console)
    about = {
        "cache": given.cache,
        "seed": given.seed,
        "page_size": PAGE,
        "trace": trace.about(),
        "distinct_pages": future.distinct,
        "most_running_pages": future.most_running,
        "working_set_pages": working_set,
        "pools_pages": pools,
        "reuses_in_top_tenth": round(future.skew(), 3),
        "unlimited": {kind: one for kind, (one,) in unlimited.items()},
        "hit_rates": rates,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps({"goals": [one.as_data() for one in findings(rates)], **about}, indent=1))


if __name__ == "__main__":
    main()
