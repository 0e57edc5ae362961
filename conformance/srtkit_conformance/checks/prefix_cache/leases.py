"""Leases: how long they are, what they pin, and what `peek` may not do."""

from __future__ import annotations

from dataclasses import replace

from srtkit_conformance.check import Figures, Informational, Outcome, check, expect
from srtkit_conformance.kits.prefix_cache.ledger import CALLER
from srtkit_conformance.kits.prefix_cache.prompts import letters, numbered
from srtkit_conformance.kits.prefix_cache.setup import new_caller, page_of
from srtkit_conformance.target import Target


@check(
    "prefix_cache.limit",
    level=1,
    clause="prefix_cache/1.0: match gives at most key.limit tokens, in whole pages",
    explain="The limit is ignored, or rounded up: a request whose whole prompt is cached must still compute its last "
    "token. A limit of 0 or below gives an empty lease.",
)
def limit(target: Target) -> Figures:
    page = page_of(target)
    [prompt] = numbered(page, [letters(page, "ABC")])
    caller = new_caller(target)
    caller.store(prompt)
    longest = 0
    for usable in (3 * page, 3 * page - 1, 2 * page, page, page - 1, 1, 0, -1):
        expect(caller.check_peek([replace(prompt.key, limit=usable)])[0] <= max(0, usable), "peek passes the limit")
        lease = caller.match(prompt, usable)
        longest = max(longest, lease.length)
        caller.release(lease)
    caller.check_all_free()
    return {"tokens_found": longest}


@check(
    "prefix_cache.whole_pages",
    level=1,
    clause="prefix_cache/1.0: insert takes whole pages; a lease's length is a multiple of the page size",
    explain="A page that is only partly written is taken, or filled up with padding and taken for a full one: others "
    "then read tokens that were never computed.",
)
def whole_pages(target: Target) -> Figures:
    page = page_of(target)
    partly = letters(page, "ABc")
    padded = replace(partly, ids=letters(page, "ABC").ids.copy())
    padded.ids[len(partly.ids) :] = 0
    prompts = numbered(page, [partly, padded, letters(page, "ABC"), letters(page, "a"), letters(page, "")])
    caller = new_caller(target)
    for prompt in prompts:
        one = caller.start(prompt)
        assert one is not None
        caller.commit(one, len(prompt))
        own = [mine for mine in one.rows["full"][len(prompt) // page :] if caller.ledgers["full"].owner[mine] != CALLER]
        expect(not own, "a partial page no longer belongs to the caller", observed=own)
        for other in prompts:
            caller.release(caller.match(other))
    kept = caller.cache.stats().cached_pages["full"]
    caller.check_all_free()
    return {"pages_kept": kept}


@check(
    "prefix_cache.committed",
    level=1,
    clause="prefix_cache/1.0: insert offers the pages of the first `upto` tokens; all from there on stay the caller's",
    explain="The whole key is taken although only `upto` tokens have been computed.",
)
def committed(target: Target) -> Figures:
    page = page_of(target)
    [prompt] = numbered(page, [letters(page, "ABCDE")])
    caller = new_caller(target)
    one = caller.start(prompt)
    assert one is not None
    for upto in (0, page - 1, page, 2 * page + 1, 2 * page + 1, 5 * page - 1):
        if upto >= one.lease.length:
            caller.commit(one, upto)
            caller.check_counts()
            caller.release(caller.match(prompt))
    kept = one.lease.length
    caller.end(one, keep=False)
    caller.check_all_free()
    return {"tokens_kept": kept}


@check(
    "prefix_cache.pins",
    level=1,
    clause="prefix_cache/1.0: match pins; a lease is valid until it is released",
    explain="A pinned page was evicted: the pin is missing, covers the last node only, is shared by two leases and "
    "dropped with the first, or was lost when a node was split.",
)
def pins(target: Target) -> Figures:
    page = page_of(target)
    long, branch, short = numbered(page, [letters(page, text) for text in ("ABCD", "ABX", "A")])
    caller = new_caller(target)
    caller.store(long, branch)
    first, second, other, third = (caller.match(prompt) for prompt in (long, long, branch, short))
    pinned = first.length
    for ending, living in ((first, second), (other, second), (third, second)):
        caller.press()
        caller.check_lease(ending, long if ending is first else branch if ending is other else short)
        caller.release(ending)
        caller.press()
        caller.check_lease(living, long)
        again = caller.match(long)
        expect(again.length == living.length, "a pinned prefix can no longer be matched", observed=again.length)
        caller.release(again)
    caller.release(second)
    running = caller.start(long, 2 * page)
    assert running is not None
    caller.commit(running, 3 * page)
    caller.press()
    caller.check_lease(running.lease, long)
    caller.check_counts()
    caller.check_all_free()
    return {"tokens_pinned": pinned}


@check(
    "prefix_cache.release",
    level=1,
    clause="prefix_cache/1.0: release unpins",
    explain="A pin that is never taken back: the page can never be freed again. Look at leases that insert replaced, "
    "and at nodes that were split while pinned.",
)
def release(target: Target) -> Figures:
    page = page_of(target)
    prompts = numbered(page, [letters(page, text) for text in ("ABCD", "ABXY", "ABCD", "ABCQ")])
    caller = new_caller(target)
    started = [caller.start(prompt) for prompt in prompts]
    for at in (2 * page, 4 * page):
        for one in started:
            assert one is not None
            caller.commit(one, at)
            caller.release(caller.match(one.prompt))
    kept = caller.cache.stats().cached_pages["full"]
    caller.check_all_free()
    pinned = caller.cache.stats().pinned_pages["full"]
    expect(pinned == 0, "pages count as pinned when no lease is open", observed=pinned)
    return {"pages_kept": kept}


@check(
    "prefix_cache.peek",
    level=1,
    clause="prefix_cache/1.0: peek gives the lengths that match would give, and pins nothing",
    explain="peek forgets the limit or the namespace, answers from a memo, or leaves a pin behind.",
)
def peek(target: Target) -> Figures:
    page = page_of(target)
    texts = ("ABCD", "ABX", "ABCQ", "XBCD", "A", "Ab", "")
    prompts = numbered(page, [letters(page, text, space) for text in texts for space in (b"", b"other")])
    keys = [replace(prompt.key, limit=usable) for prompt in prompts for usable in (100 * page, page + 1, 0)]
    caller = new_caller(target)
    expect(caller.check_peek(keys) == [0] * len(keys), "an empty cache finds something")
    caller.store(prompts[0])
    found = caller.check_peek(keys)
    before = caller.cache.evictable("full")
    caller.cache.peek(keys)
    expect(caller.cache.evictable("full") == before, "peek changes what can be evicted")
    caller.evict("full", 2)
    caller.acknowledge()
    caller.check_peek(keys)
    expect(caller.cache.peek([]) == [], "peek of nothing is not nothing")
    caller.check_all_free()
    return {"longest": max(found)}


@check(
    "prefix_cache.peek_order",
    level=1,
    clause="prefix_cache/1.0: peek changes no recency",
    explain="peek goes through match, or touches what it passes. The scheduler peeks at every waiting request in "
    "every step, so the order of eviction would become meaningless.",
)
def peek_order(target: Target) -> Outcome:
    plain, again, peeked = (_eviction_order(target, peeks) for peeks in (False, False, True))
    if plain != again:
        return Informational("the order of eviction differs from run to run, so peeks cannot be told from chance")
    expect(peeked == plain, "peeks changed the order of eviction", observed=peeked, limit=plain)
    return {"pages_evicted": len(plain)}


def _eviction_order(target: Target, peeks: bool) -> list[int]:
    """The same traffic each time; `peeks`: with peeks at the oldest in between."""
    page = page_of(target)
    prompts = numbered(page, [letters(page, text) for text in ("AB", "CD", "EF", "GH", "ABX")])
    caller = new_caller(target)
    for prompt in (*prompts[:4], prompts[0], prompts[2]):
        caller.store(prompt)
        if peeks:
            caller.cache.peek([prompts[1].key, prompts[4].key, prompts[1].key])
    order: list[int] = []
    while caller.cache.evictable("full") > 0:
        before = caller.ledgers["full"].owned("free")
        caller.evict("full", 1)
        caller.acknowledge()
        order += sorted(caller.ledgers["full"].owned("free") - before)
    return order
