"""Pages: each has one owner at any time, is given back once, and can be had when it is promised."""

from __future__ import annotations

from srtkit_conformance.check import Figures, check, expect
from srtkit_conformance.kits.prefix_cache.caller import Caller
from srtkit_conformance.kits.prefix_cache.ledger import CACHE
from srtkit_conformance.kits.prefix_cache.prompts import Prompt, letters, numbered
from srtkit_conformance.kits.prefix_cache.setup import new_caller, page_of
from srtkit_conformance.target import Target

TREE = ("ABCDE", "ABCX", "ABY", "QRS", "QRT")


def _grown(target: Target) -> tuple[Caller, list[Prompt]]:
    """A cache that has stored a small tree of prompts."""
    page = page_of(target)
    prompts = numbered(page, [letters(page, text) for text in TREE])
    caller = new_caller(target)
    caller.store(*prompts)
    return caller, prompts


@check(
    "prefix_cache.evict",
    level=1,
    clause="prefix_cache/1.0: evict frees at least min(n, evictable) pages of the component",
    explain="evict stops early (at the first leaf, at a node's end), or frees pages without giving them back: then "
    "they are lost to everybody.",
)
def evict(target: Target) -> Figures:
    freed = 0
    for n in (0, 1, 2, 3, 7, 1000):
        caller, _ = _grown(target)
        freed += caller.evict("full", n)
        caller.acknowledge()
        caller.check_counts()
    return {"pages_freed": freed}


@check(
    "prefix_cache.evict_once",
    level=1,
    clause="prefix_cache/1.0: pages given back on eviction are the scheduler's again",
    explain="A page is given back twice, and two sequences then write to it.",
)
def evict_once(target: Target) -> Figures:
    caller, prompts = _grown(target)
    freed = 0
    while caller.cache.evictable("full") > 0:
        freed += caller.evict("full", 1)
        caller.acknowledge()
    caller.evict("full", 5)
    caller.acknowledge()
    caller.store(*prompts)
    caller.check_all_free()
    return {"pages_freed": freed}


@check(
    "prefix_cache.evictable",
    level=1,
    clause="prefix_cache/1.0: evictable is the number of pages that evict could free now",
    explain="The figure counts pinned pages, is not lowered by a match or raised by a release, or is stale after an "
    "eviction. The scheduler admits requests on it.",
)
def evictable(target: Target) -> Figures:
    caller, prompts = _grown(target)
    cache = caller.cache
    caller.check_counts()
    running = [caller.start(prompt) for prompt in prompts[:2]]
    caller.check_counts()
    promised = cache.evictable("full")
    freed = caller.evict("full", 1)
    left = cache.evictable("full")
    expect(left == promised - freed, "evictable does not follow evict", observed=left, limit=promised - freed)
    freed += caller.evict("full", 1000)
    expect(freed == promised, "evict could free another number than evictable said", observed=freed, limit=promised)
    expect(cache.evictable("full") == 0, "pages are evictable after all were evicted")
    caller.acknowledge()
    for one in running:
        assert one is not None
        caller.check_lease(one.lease, one.prompt)
        caller.end(one)
        caller.check_counts()
    held = caller.ledgers["full"].count(CACHE)
    unpinned = cache.evictable("full")
    expect(unpinned == held, "not all that nobody pins can be freed", observed=unpinned, limit=held)
    caller.check_all_free()
    return {"pages_promised": promised}


@check(
    "prefix_cache.reachable",
    level=1,
    clause="prefix_cache/1.0: a page id in the cache stands for its whole prefix",
    explain="A page was evicted before the pages that follow it: those can never be matched again, but still count.",
)
def reachable(target: Target) -> Figures:
    caller, prompts = _grown(target)
    steps = 0
    while caller.cache.evictable("full") > 0:
        caller.evict("full", 1)
        caller.acknowledge()
        caller.check_reachable(prompts)
        steps += 1
    return {"evictions": steps}


@check(
    "prefix_cache.duplicates",
    level=1,
    clause="prefix_cache/1.0: below the new lease's length a page belongs to the cache unless a Remap names it",
    explain="Two requests computed the same prefix. The cache must say for which pages it goes on with the earlier "
    "ones, on every insert until the caller uses them; a page it keeps silent about is lost or freed twice.",
)
def duplicates(target: Target) -> Figures:
    page = page_of(target)
    texts = ("ABCD", "ABCDe", "ABCX")
    prompts = numbered(page, [letters(page, text) for text in texts])
    caller = new_caller(target)
    first, second, third = (caller.start(prompt) for prompt in prompts)
    assert first is not None and second is not None and third is not None
    caller.commit(first, 4 * page)
    told = len(caller.commit(second, 3 * page))
    # A caller that keeps its own pages is told again; one that took the cache's is not.
    caller.commit(second, 4 * page)
    caller.commit(second, len(prompts[1]), use_theirs=True)
    caller.commit(second, len(prompts[1]))
    caller.commit(third, 4 * page)
    caller.check_counts()
    caller.check_reachable(prompts)
    for one in (second, first, third):
        caller.end(one)
    caller.check_counts()
    caller.check_all_free()
    return {"pages_remapped": told}
