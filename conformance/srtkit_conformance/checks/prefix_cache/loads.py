"""What comes back from slower tiers: exactly the prefix, or nothing."""

from __future__ import annotations

from srtkit.spec.capabilities import No
from srtkit.spec.kv import FULL
from srtkit_conformance.check import Informational, Outcome, check, expect
from srtkit_conformance.kits.prefix_cache.prompts import letters, numbered
from srtkit_conformance.kits.prefix_cache.setup import declared, new_cache, page_of
from srtkit_conformance.kits.prefix_cache.tiers import TieredCaller
from srtkit_conformance.target import Target

TEXTS = ("ABCD", "ABXY", "QRST", "QRUV", "AB")


@check(
    "prefix_cache.loads",
    level=1,
    clause="prefix_cache/1.0: load brings the first of the pending tokens into pages that are the cache's from then on",
    explain="A page comes back with another's content, or before its copy was done; a prefix is found on the host "
    "whose copy failed; the pages of a load are given back while it is under way.",
)
def loads(target: Target) -> Outcome:
    caller = _caller(target)
    if isinstance(caller, Informational):
        return caller
    prompts = numbered(caller.page_size, [letters(caller.page_size, text) for text in TEXTS])
    loaded = 0
    for turn in range(4):
        for prompt in prompts:
            caller.store(prompt)
            caller.store(prompt)
            caller.run(lambda one, turn=turn: turn % 2 == 1 and one.direction == "out")  # type: ignore[misc]
        caller.press()
        for prompt in prompts[:3]:
            loaded += caller.load(prompt)
        caller.check_counts()
    expect(loaded > 0, "nothing ever comes back from a slower tier")
    caller.check_all_free()
    return {"tokens_loaded": loaded}


@check(
    "prefix_cache.failed_load",
    level=1,
    clause="prefix_cache/1.0: if a load fails, the cache forgets what it holds, and complete returns what is free",
    explain="Pages that were never filled stay in the cache, and serve the next request that has their prefix.",
)
def failed_load(target: Target) -> Outcome:
    caller = _caller(target)
    if isinstance(caller, Informational):
        return caller
    page = caller.page_size
    first, longer = numbered(page, [letters(page, text) for text in ("ABCD", "ABCDE")])
    caller.store(first, first, first)  # used twice: a cache may save only what is used again
    caller.run()
    caller.press()
    lease = caller.match(first)
    n = lease.pending // page
    expect(n > 0, "nothing is pending after an eviction")
    lease = caller.cache.load(lease, caller.rubbish(n))
    caller.run(lambda one: one.direction == "in")
    lengths = caller.cache.peek([first.key, longer.key])
    expect(lengths == [0, 0], "a prefix is found whose load has failed", observed=lengths)
    caller.take_back(caller.cache.release(lease))
    caller.check_all_free()
    return None


def _caller(target: Target) -> TieredCaller | Informational:
    can = declared(target).tiers
    if isinstance(can, No):
        return Informational(f"declares no tiers: {can.reason}")
    if target.descriptor.mover is None:
        return Informational("it never loads: its descriptor names nobody who moves bytes")
    return TieredCaller(new_cache(target, page_of(target), [FULL]), page_of(target), [FULL], 20)
