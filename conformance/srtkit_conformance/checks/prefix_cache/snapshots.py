"""Components of reach "snapshot": where a match may end, who owns a snapshot, its pins, and a budget of its own."""

from __future__ import annotations

from srtkit.spec.kv import FULL, STATE
from srtkit_conformance.check import Informational, Outcome, check, expect
from srtkit_conformance.kits.prefix_cache.caller import Caller
from srtkit_conformance.kits.prefix_cache.ledger import CACHE
from srtkit_conformance.kits.prefix_cache.prompts import Prompt, letters, numbered
from srtkit_conformance.kits.prefix_cache.setup import declared, new_caller, page_of
from srtkit_conformance.target import Target

NAME = STATE.name
TEXTS = ("ABCDEF", "ABCXYZ", "ABCD", "AB", "QRS")


def _stateful(target: Target, *, full: bool = True) -> tuple[Caller, list[Prompt]] | None:
    """A caller with snapshots beside full pages; None where the cache declares no snapshots."""
    if "snapshot" not in declared(target).reaches:
        return None
    page = page_of(target)
    prompts = numbered(page, [letters(page, text) for text in TEXTS])
    return new_caller(target, (FULL, STATE) if full else (STATE,)), prompts


def _none() -> Informational:
    return Informational("it declares no components of reach snapshot, and is not given any")


@check(
    "prefix_cache.snapshot_match",
    level=1,
    clause="prefix_cache/1.0: match: of a slot component a snapshot of exactly `length` tokens",
    explain="A state is reused for a longer or a shorter prefix than it was taken after, or a prefix is found where no "
    "snapshot stands (any more).",
)
def snapshot_match(target: Target) -> Outcome:
    page, found = page_of(target), 0
    for full in (True, False):
        if (made := _stateful(target, full=full)) is None:
            return _none()
        caller, prompts = made
        for prompt, ends in zip(prompts, ((2, 5), (3,), (4,), (), (3,)), strict=True):
            one = caller.start(prompt, 0)
            assert one is not None
            for at in (1, *ends):
                caller.commit(one, at * page, snapshot=at in ends)
            caller.end(one, keep=False)
            for other in prompts:
                lease = caller.match(other)
                found += lease.length
                caller.release(lease)
        while caller.cache.evictable(NAME) > 0:
            caller.evict(NAME, 1)
            caller.acknowledge()
            caller.check_counts()
            caller.check_peek([prompt.key for prompt in prompts])
            for prompt in prompts:
                caller.release(caller.match(prompt))
        lengths = caller.check_peek([prompt.key for prompt in prompts])
        expect(not any(lengths), "a prefix is found without any snapshot", observed=lengths)
        caller.check_all_free()
    return {"tokens_found": found}


@check(
    "prefix_cache.snapshot_owner",
    level=1,
    clause="prefix_cache/1.0: a snapshot becomes the cache's if the new lease reaches `upto` and no Remap names it",
    explain="Two sequences bring the same state: the second slot is taken and the first lost, or neither is told of.",
)
def snapshot_owner(target: Target) -> Outcome:
    if (made := _stateful(target)) is None:
        return _none()
    caller, prompts = made
    page = page_of(target)
    first, second, third = (caller.start(prompts[which], 0) for which in (0, 0, 1))
    assert first is not None and second is not None and third is not None
    told = 0
    for at in (3, 6):
        for one in (first, second, third):
            told += sum(remap.component == NAME for remap in caller.commit(one, at * page, use_theirs=one is second))
            caller.check_counts()
    caller.reset()
    for one in (first, second, third):
        caller.commit(one, 6 * page)
        caller.end(one, keep=False)
        caller.check_counts()
    caller.check_all_free()
    return {"snapshots_remapped": told}


@check(
    "prefix_cache.snapshot_pins",
    level=1,
    clause="prefix_cache/1.0: match pins the snapshot it names; evict gives back what nobody pins, per component",
    explain="The state of a request that was just admitted goes before it is copied; or all snapshots of a path are "
    "pinned for as long as a sequence runs.",
)
def snapshot_pins(target: Target) -> Outcome:
    if (made := _stateful(target)) is None:
        return _none()
    caller, prompts = made
    caller.store(*prompts)
    running = [caller.start(prompt) for prompt in (prompts[0], prompts[2], prompts[0])]
    promised, pinned = caller.cache.evictable(NAME), caller.pinned(NAME)
    loose = len(caller.ledgers[NAME].owned(CACHE) - pinned)
    expect(promised == loose, "other snapshots are pinned than those that leases name", observed=promised, limit=loose)
    caller.press()
    for one in running:
        assert one is not None
        caller.check_lease(one.lease, one.prompt)
        caller.check_counts()
        caller.end(one)
        caller.press()
    caller.check_all_free()
    return {"snapshots_pinned": len(pinned)}


@check(
    "prefix_cache.snapshot_budget",
    level=1,
    clause="prefix_cache/1.0: evict frees entries of the component; a page of reach all takes what stands on it",
    explain="Room for a state takes pages, or the end of a prefix goes without its snapshot, which is then lost.",
)
def snapshot_budget(target: Target) -> Outcome:
    if (made := _stateful(target)) is None:
        return _none()
    caller, prompts = made
    caller.store(*prompts)
    held = {name: ledger.count(CACHE) for name, ledger in caller.ledgers.items()}
    running = caller.start(prompts[1])
    caller.evict(NAME, 2)
    caller.acknowledge()
    full = caller.ledgers["full"].count(CACHE)
    expect(full == held["full"], "room for a state took pages", observed=full, limit=held["full"])
    assert running is not None
    caller.check_lease(running.lease, running.prompt)
    caller.end(running)
    while caller.cache.evictable("full") > 0:
        caller.evict("full", 1)
        caller.acknowledge()
        caller.check_counts()
    left = caller.ledgers[NAME].count(CACHE)
    expect(left == 0, "snapshots stay where their prefixes are gone", observed=left)
    caller.check_all_free()
    return {"snapshots_held": held[NAME]}
