"""A running sequence as its caller sees it, and whose its pages are after an insert. Knows no cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from srtkit.spec.prefix_cache import Lease, Remap
from srtkit_conformance.check import expect
from srtkit_conformance.kits.prefix_cache.ledger import CALLER, Ledger
from srtkit_conformance.kits.prefix_cache.prompts import Prompt

Pages = dict[str, list[int]]


@dataclass(eq=False)
class Running:
    """A sequence: its prompt, its lease, its page row per paged component, and whether a reset came since its start.

    A row has 0 for pages of a window that the sequence has let go. `matched`: its lease is still that of its match.
    """

    prompt: Prompt
    lease: Lease
    rows: Pages = field(default_factory=dict)
    stale: bool = False
    matched: bool = True


def settle_pages(
    ledger: Ledger, leased: Sequence[int], row: Sequence[int], remaps: Mapping[int, Remap], owned: set[int]
) -> None:
    """Whose the pages of one component are: those in the lease and not remapped went to the cache.

    `leased` are the new lease's, `remaps` those of the component by index, `owned` what the cache had before.
    """
    beyond = [one for index, one in remaps.items() if index >= len(leased)]
    expect(not beyond, "a remap lies beyond the lease", observed=beyond)
    for index, theirs in enumerate(leased):
        mine, told = row[index], remaps.get(index)
        if told is not None:
            right = told.mine == mine and theirs in (0, told.theirs)
            expect(right, "a remap names other pages", observed=told)
            had = told.theirs in owned and mine != told.theirs
            expect(had, "a remap to a page the cache had not", observed=told)
            expect(_same(ledger, told), "a remap to a page of another prefix", observed=told)
            expect(ledger.owner[mine] == CALLER, "a remap hands back a page of the cache", observed=told)
        elif mine:
            # Before a window the lease names no page, and a page that is offered there is the cache's all the same.
            silent = theirs not in (0, mine)
            expect(not silent, "the cache serves another page and does not say so", observed=theirs, limit=mine)
            if mine not in owned:
                ledger.to_cache(mine)


def settle_snapshot(
    ledger: Ledger, offered: Sequence[int], remaps: Sequence[Remap], owned: set[int], *, reached: bool
) -> None:
    """Whose the slot of a snapshot is; one that stays the caller's is free at once. `reached`: the lease covers it."""
    told = [(one.index, one.mine) for one in remaps]
    expect(told in ([], [(0, slot) for slot in offered]), "a remap names another snapshot", observed=told)
    for remap in remaps:
        had = remap.theirs in owned and _same(ledger, remap)
        expect(had, "a remap to a snapshot the cache had not", observed=remap)
    for slot in offered:
        if reached and not told:
            ledger.to_cache(slot)
        else:
            ledger.drop([slot], CALLER)


def _same(ledger: Ledger, remap: Remap) -> bool:
    """Whether both pages hold the same."""
    return ledger.content.get(remap.mine) == ledger.content.get(remap.theirs)
