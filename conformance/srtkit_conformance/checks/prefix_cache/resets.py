"""What a reset forgets, and what it may not take away."""

from __future__ import annotations

from srtkit_conformance.check import Figures, check, expect
from srtkit_conformance.kits.prefix_cache.ledger import FREE
from srtkit_conformance.kits.prefix_cache.prompts import letters, numbered
from srtkit_conformance.kits.prefix_cache.setup import new_caller, page_of
from srtkit_conformance.target import Target


@check(
    "prefix_cache.reset",
    level=1,
    clause="prefix_cache/1.0: reset forgets everything and returns the pages that nobody pins",
    explain="After new weights the old pages are wrong: something still finds them, or they were not given back.",
)
def reset(target: Target) -> Figures:
    page = page_of(target)
    prompts = numbered(page, [letters(page, text, space) for text in ("ABC", "ABX") for space in (b"", b"adapter")])
    caller = new_caller(target)
    caller.store(*prompts)
    kept = caller.cache.stats().cached_pages["full"]
    caller.reset()
    lengths = caller.check_peek([prompt.key for prompt in prompts])
    expect(not any(lengths), "a prompt is still found after a reset", observed=lengths)
    caller.acknowledge()
    ledger = caller.ledgers["full"]
    expect(ledger.count(FREE) == ledger.total, "reset did not return every page", observed=ledger.count(FREE))
    caller.check_counts()
    caller.store(*prompts)
    caller.check_reachable(prompts)
    caller.check_all_free()
    return {"pages_kept": kept}


@check(
    "prefix_cache.reset_pins",
    level=1,
    clause="prefix_cache/1.0: pages pinned at a reset come back from release; a lease from before stays valid",
    explain="A reset took away pages that a running request reads, or never gives back those it had to leave.",
)
def reset_pins(target: Target) -> Figures:
    page = page_of(target)
    long, short, branch = numbered(page, [letters(page, text) for text in ("ABCD", "AB", "ABX")])
    caller = new_caller(target)
    caller.store(long, branch)
    running = [caller.start(prompt) for prompt in (long, short, branch)]
    pinned = len(caller.pinned("full"))
    caller.reset()
    caller.press()
    for one in running:
        assert one is not None
        caller.check_lease(one.lease, one.prompt)
        caller.check_counts()
        caller.end(one, keep=False)
    caller.check_counts()
    left = caller.detached["full"]
    expect(not left, "pages that a reset left to a lease never came back", observed=sorted(left))
    caller.check_all_free()
    return {"pages_pinned": pinned}


@check(
    "prefix_cache.reset_leases",
    level=1,
    clause="prefix_cache/1.0: insert takes nothing more under a lease from before a reset",
    explain="A request that began before the reset stores pages computed with the old weights after it.",
)
def reset_leases(target: Target) -> Figures:
    page = page_of(target)
    known, unknown = numbered(page, [letters(page, text) for text in ("ABCD", "XYZ")])
    caller = new_caller(target)
    caller.store(known)
    caller.evict("full", 2)
    caller.acknowledge()
    old = [caller.start(prompt) for prompt in (known, unknown)]
    pinned = len(caller.pinned("full"))
    caller.reset()
    for one in old:
        assert one is not None
        caller.commit(one, len(one.prompt))
        lengths = caller.cache.peek([known.key, unknown.key])
        expect(not any(lengths), "pages from before the reset can be found", observed=lengths)
    caller.store(known, unknown)
    for one in old:
        assert one is not None
        caller.commit(one, len(one.prompt))
        caller.check_reachable([known, unknown])
        caller.end(one, keep=False)
    caller.check_all_free()
    return {"pages_pinned": pinned}
