"""The state machine: random traffic from overlapping prompts, in orders nobody thinks of."""

from __future__ import annotations

from srtkit.spec.kv import Component
from srtkit.spec.prefix_cache import PrefixCache
from srtkit_conformance.check import Figures, check
from srtkit_conformance.kits.prefix_cache.machine import STEPS, run_machine
from srtkit_conformance.kits.prefix_cache.setup import BOTH, declared, new_cache, page_of
from srtkit_conformance.target import Target


@check(
    "prefix_cache.traffic",
    level=2,
    clause="prefix_cache/1.0: all of it, in any order of calls",
    explain="The notes of the failure are the calls that led to it. Repeat them against the cache directly.",
)
def traffic(target: Target) -> Figures:
    sizes = declared(target).page_sizes
    components = [Component(name) for name in BOTH]
    for page_size, runs in ((page_of(target), 16), (min(sizes), 6), (max(sizes), 6)):

        def make_cache(page_size: int = page_size) -> PrefixCache:
            return new_cache(target, page_size, components)

        run_machine(make_cache, page_size, BOTH, salt=target.seed, runs=runs, shrink=not target.mutant)
    return {"runs": 28, "steps": STEPS, "components": len(BOTH)}
