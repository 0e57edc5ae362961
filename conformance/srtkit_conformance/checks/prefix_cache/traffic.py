"""The state machine: random traffic from overlapping prompts, for the page sizes and components that are declared."""

from __future__ import annotations

from collections.abc import Sequence

from srtkit.spec.kv import Component
from srtkit_conformance.check import Figures, check
from srtkit_conformance.kits.prefix_cache.machine import EXAMPLES, STEPS, run_machine
from srtkit_conformance.kits.prefix_cache.setup import BOTH, FULL, declared, new_cache, page_of
from srtkit_conformance.target import Target

CLAUSE = "prefix_cache/1.0: all of it, in any order of calls"
EXPLAIN = "The steps that led to the failure stand in the message. Reproduce them with direct calls."


def _run(target: Target, page_size: int, names: Sequence[str]) -> Figures:
    components = [Component(name) for name in names]
    run_machine(lambda: new_cache(target, page_size, components), page_size, names, target.seed)
    return {"page_size": page_size, "components": len(names), "runs": EXAMPLES, "steps": STEPS}


@check("prefix_cache.traffic", level=2, clause=CLAUSE, explain=EXPLAIN)
def traffic(target: Target) -> Figures:
    return _run(target, page_of(target), FULL)


@check("prefix_cache.traffic_components", level=2, clause=CLAUSE, explain=EXPLAIN)
def traffic_components(target: Target) -> Figures:
    return _run(target, page_of(target), BOTH)


@check("prefix_cache.traffic_small_pages", level=2, clause=CLAUSE, explain=EXPLAIN)
def traffic_small_pages(target: Target) -> Figures:
    return _run(target, min(declared(target).page_sizes), FULL)


@check("prefix_cache.traffic_large_pages", level=2, clause=CLAUSE, explain=EXPLAIN)
def traffic_large_pages(target: Target) -> Figures:
    return _run(target, max(declared(target).page_sizes), FULL)
