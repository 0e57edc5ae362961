"""Checks of a kind of its own that end well on `prefix_cache:chunk`, one for each good verdict."""

from __future__ import annotations

from srtkit.spec.capabilities import No
from srtkit_conformance.check import Informational, Outcome, Refused, check, expect
from srtkit_conformance.target import Target

CLAUSE = "toy/1.0: it does as it is told"


@check("prefix_cache.toy_passes", level=0, clause=CLAUSE, explain="It cannot fail.")
def passes(target: Target) -> Outcome:
    print("heard by nobody")
    return {"pages": 3, "ratio": 0.25}


@check("prefix_cache.toy_shares", level=1, clause="toy/1.0: says why it shares nothing", explain="It says nothing.")
def shares(target: Target) -> Outcome:
    said = target.descriptor.capabilities(target.options).shares
    expect(isinstance(said, No), "shares though it must not", observed=said, limit="a no")
    return Refused(said.reason)


@check("prefix_cache.toy_pages", level=1, clause="toy/1.0: takes pages of 16", explain="It takes no page.")
def pages(target: Target) -> Outcome:
    sizes = target.descriptor.capabilities(target.options).page_sizes
    expect(16 in sizes, "takes no page of 16", observed=sizes)
    return Informational("takes more, too", {"sizes": len(sizes)}) if len(sizes) > 1 else None
