"""Components of reach "window": what a match needs of them, what it pins, holes, and a budget of their own."""

from __future__ import annotations

from srtkit.spec.kv import FULL, Component
from srtkit_conformance.check import Informational, Outcome, check, expect
from srtkit_conformance.kits.prefix_cache.caller import Caller
from srtkit_conformance.kits.prefix_cache.ledger import CACHE, CALLER
from srtkit_conformance.kits.prefix_cache.prompts import Prompt, letters, numbered
from srtkit_conformance.kits.prefix_cache.setup import declared, new_caller, page_of
from srtkit_conformance.target import Target

NAME = "window"
TEXTS = ("ABCDEFGH", "ABCDEFXY", "ABCD", "ABQ", "ABCDEFGHIJ")


def _windowed(target: Target, *, full: bool = True) -> tuple[Caller, list[Prompt]] | None:
    """A caller with a window of two pages and a token beside full pages; None where the cache declares no windows."""
    if NAME not in declared(target).reaches:
        return None
    page = page_of(target)
    window = Component(NAME, reach="window", window=2 * page + 1)
    prompts = numbered(page, [letters(page, text) for text in TEXTS])
    return new_caller(target, (FULL, window) if full else (window,)), prompts


def _none() -> Informational:
    return Informational("it declares no components of reach window, and is not given any")


@check(
    "prefix_cache.window_match",
    level=1,
    clause="prefix_cache/1.0: match: of a window component the pages from first_page(length) on, no earlier ones",
    explain="A page that was evicted inside the window goes unnoticed, so that a request reads another's page, or the "
    "whole prefix counts as lost although only pages before the window are.",
)
def window_match(target: Target) -> Outcome:
    found = 0
    for full in (True, False):
        if (made := _windowed(target, full=full)) is None:
            return _none()
        caller, prompts = made
        caller.store(*prompts)
        while caller.cache.evictable(NAME) > 0:
            caller.evict(NAME, 1)
            caller.acknowledge()
            for prompt in prompts:
                lease = caller.match(prompt)
                found += lease.length
                caller.release(lease)
        lengths = caller.check_peek([prompt.key for prompt in prompts])
        expect(not any(lengths), "a prefix is found without any page of the window", observed=lengths)
        caller.store(*prompts)
        caller.check_all_free()
    return {"tokens_found": found}


@check(
    "prefix_cache.window_pins",
    level=1,
    clause="prefix_cache/1.0: pinned are the pages named, no others: those before a window may be evicted meanwhile",
    explain="Every page of a running sequence is pinned, so that the pool of the window is full after a few long "
    "prompts; or none is, or the pin is lost when a node is split or a longer lease ends.",
)
def window_pins(target: Target) -> Outcome:
    if (made := _windowed(target)) is None:
        return _none()
    caller, prompts = made
    caller.store(*prompts)
    running = [caller.start(prompt) for prompt in (prompts[0], prompts[2], prompts[0])]
    held = caller.ledgers[NAME].owned(CACHE)
    promised = caller.cache.evictable(NAME)
    loose = len(held - caller.pinned(NAME))
    expect(promised == loose, "other pages are pinned than those that leases name", observed=promised, limit=loose)
    caller.press()
    for one in running:
        assert one is not None
        caller.check_lease(one.lease, one.prompt)
        caller.check_counts()
        caller.end(one)
        caller.press()
    caller.check_all_free()
    return {"pages_loose": loose}


@check(
    "prefix_cache.window_holes",
    level=1,
    clause="prefix_cache/1.0: insert: of a window component the caller offers 0 for pages that it has let go; the "
    "cache takes those that it lacks",
    explain="Page 0 is taken, matched or given back as if it were one; or a page that was lost is never taken again.",
)
def window_holes(target: Target) -> Outcome:
    if (made := _windowed(target)) is None:
        return _none()
    caller, prompts = made
    page = page_of(target)
    long, again = caller.start(prompts[0]), caller.start(prompts[0])
    assert long is not None and again is not None
    caller.commit(long, 2 * page)
    caller.let_go(long, 7 * page)
    caller.commit(long, 8 * page)
    kept = caller.ledgers[NAME].count(CACHE)
    caller.check_counts()
    caller.release(caller.match(prompts[2]))
    caller.end(long)
    # The second sequence has the pages that the first one had let go.
    caller.commit(again, 8 * page)
    filled = caller.ledgers[NAME].count(CACHE) - kept
    caller.check_counts()
    for prompt in prompts:
        caller.release(caller.match(prompt))
    caller.end(again)
    caller.check_all_free()
    if declared(target).shares and kept:
        expect(filled > 0, "a page that the cache lacked was not taken", observed=filled)
    return {"pages_filled": filled}


@check(
    "prefix_cache.window_budget",
    level=1,
    clause="prefix_cache/1.0: evict frees pages of the component; a page of reach all takes what stands on it",
    explain="Making room in the window takes full pages, which all later matches need, or pages that a lease holds; or "
    "the end of a prefix goes without its window pages, which are then lost.",
)
def window_budget(target: Target) -> Outcome:
    if (made := _windowed(target)) is None:
        return _none()
    caller, prompts = made
    caller.store(*prompts)
    held = {name: ledger.count(CACHE) for name, ledger in caller.ledgers.items()}
    running = caller.start(prompts[4])
    caller.evict(NAME, 4)
    caller.acknowledge()
    caller.check_counts()
    full = caller.ledgers["full"].count(CACHE)
    expect(full == held["full"], "room in the window took full pages", observed=full, limit=held["full"])
    caller.evict("full", 3)
    caller.acknowledge()
    caller.check_counts()
    assert running is not None
    caller.check_lease(running.lease, running.prompt)
    caller.end(running)
    while caller.cache.evictable("full") > 0:
        caller.evict("full", 1)
        caller.acknowledge()
        caller.check_counts()
    left = caller.ledgers[NAME].count(CACHE)
    expect(left == 0, "window pages stay where their prefixes are gone", observed=left)
    mine = caller.ledgers[NAME].count(CALLER)
    expect(mine == 0, "pages of the caller are left", observed=mine)
    caller.check_all_free()
    return {"pages_held": held[NAME]}
