"""What a cache shows of itself: prefixes of prompts that were stored, with their own pages; looking changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from srtkit.spec.prefix_cache import Prefix
from srtkit_conformance.check import Informational, Outcome, check, expect
from srtkit_conformance.kits.prefix_cache.caller import Caller
from srtkit_conformance.kits.prefix_cache.prompts import Prompt, letters, numbered
from srtkit_conformance.kits.prefix_cache.setup import new_caller, page_of
from srtkit_conformance.target import Target

TEXTS = ("ABCD", "ABXY", "ABCD", "ABCQ", "QRST", "Q", "ABCDEF")


@check(
    "prefix_cache.outline",
    level=1,
    clause="prefix_cache/1.1, outline: up to limit prefixes with tokens of their ids; parents first; changes nothing",
    explain="A prefix stands before what it extends, names pages of another one or that the cache has given back, or "
    "looking at the cache counts as using it.",
)
def outline(target: Target) -> Outcome:
    page = page_of(target)
    keys = [letters(page, text, space) for text in TEXTS for space in (b"", b"adapter")]
    prompts = numbered(page, keys)
    caller = new_caller(target)
    caller.store(*prompts)
    caller.evict("full", 3)
    caller.acknowledge()
    caller.start(prompts[0])
    before = _state(caller, prompts)
    found = caller.cache.outline(100, page)
    expect(_state(caller, prompts) == before, "looking at the cache changes what it would give or give up")
    short = caller.cache.outline(2, 0)
    expect(len(short) <= 2, "more prefixes than the limit", observed=len(short), limit=2)
    expect(not any(one.ids for one in short), "more ids than were asked for")
    if not found:
        return Informational("it does not say what it keeps")
    expect(len(short) == min(2, len(found)), "fewer prefixes than there are", observed=len(short))
    _check(caller, found, prompts)
    return {"prefixes": len(found)}


def _state(caller: Caller, prompts: Sequence[Prompt]) -> object:
    """All that using the cache would change."""
    cache = caller.cache
    stats = cache.stats()
    return cache.peek([one.key for one in prompts]), cache.evictable("full"), stats.pinned_pages, stats.cached_pages


def _check(caller: Caller, found: Sequence[Prefix], prompts: Sequence[Prompt]) -> None:
    """Every prefix is that of a prompt, and its pages hold it."""
    ledger, page, pinned = caller.ledgers["full"], caller.page_size, caller.pinned("full")
    of: list[list[Prompt]] = []
    for place, one in enumerate(found):
        expect(-1 <= one.parent < place, "a prefix stands before what it extends", observed=one.parent, limit=place)
        start = found[one.parent].length if one.parent >= 0 else 0
        expect(one.length > start, "a prefix is no longer than what it extends", observed=one.length, limit=start)
        end = min(start + page, one.length)
        of.append(
            [prompt for prompt in (of[one.parent] if one.parent >= 0 else prompts) if _is(one, prompt, start, end)]
        )
        expect(bool(of[-1]), "a prefix of no prompt that was stored", observed=list(one.ids))
        first, last = start // page, -(-one.length // page)
        pages = one.pages["full"].tolist()
        expect(len(pages) == last - first, "pages do not cover a prefix's own tokens", observed=len(pages))
        held = [number for number in pages if ledger.owner.get(number) == "cache"]
        expect(held == pages, "a prefix names pages that are not the cache's", observed=pages)
        contents = of[-1][0].contents[first:last]
        expect([ledger.content[number] for number in pages] == list(contents), "a page holds something else")
        expect((one.pins > 0) == (not pinned.isdisjoint(pages)), "pins miscount the leases", observed=one.pins)


def _is(one: Prefix, prompt: Prompt, start: int, end: int) -> bool:
    """Whether the prefix, whose first own tokens are those from `start` to `end`, may be the prompt's."""
    ids = tuple(prompt.key.ids[start:end].tolist())
    return one.namespace == prompt.key.namespace and one.ids == ids and one.length <= len(prompt)
