"""The state machine: random traffic from overlapping prompts, in orders nobody thinks of."""

from __future__ import annotations

from srtkit.spec.kv import FULL, STATE, Component
from srtkit.spec.prefix_cache import PrefixCache
from srtkit_conformance.check import Figures, Informational, Outcome, check
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
    for page_size, runs in ((page_of(target), 16), (min(sizes), 6), (max(sizes), 6)):

        def make_cache(page_size: int = page_size) -> PrefixCache:
            return new_cache(target, page_size, BOTH)

        run_machine(make_cache, page_size, BOTH, salt=target.seed, runs=runs, shrink=not target.mutant)
    return {"runs": 28, "steps": STEPS, "components": len(BOTH)}


@check(
    "prefix_cache.mixed_traffic",
    level=2,
    clause="prefix_cache/1.0: all of it, in any order of calls, with components of every declared reach at once",
    explain="The notes of the failure are the calls that led to it. Repeat them against the cache directly.",
)
def mixed_traffic(target: Target) -> Outcome:
    page = page_of(target)
    near, far = (Component(name, reach="window", window=n) for name, n in (("near", page + 1), ("far", 2 * page + 2)))
    mixtures = ((FULL, near), (near, far), (STATE,), (FULL, STATE), (FULL, far, STATE))
    reaches = declared(target).reaches
    tried = [mixture for mixture in mixtures if {one.reach for one in mixture} <= reaches]
    for number, components in enumerate(tried):

        def make_cache(components: tuple[Component, ...] = components) -> PrefixCache:
            return new_cache(target, page, components)

        run_machine(make_cache, page, components, salt=target.seed + number, runs=8, shrink=not target.mutant)
    if not tried:
        return Informational("it declares no other reach than all")
    return {"runs": 8 * len(tried), "steps": STEPS, "mixtures": len(tried)}
