"""What a provider's descriptor says: names of the contract, and a predicate over static facts. No torch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from srtkit.spec.capabilities import NOT_DECLARED, No, Yes
from srtkit.spec.ops import SCHEMAS, OpsDescriptor
from srtkit_conformance.check import Figures, Informational, Outcome, check, expect
from srtkit_conformance.kits.fresh import can_travel, imported_by
from srtkit_conformance.kits.ops.cases import SIZES, ask_all, cases_of
from srtkit_conformance.target import Target


@check(
    "ops.no_torch",
    level=0,
    clause="ops/1.0: accepts is a predicate over static facts; all but build import no torch",
    explain="The predicate asks torch what the processor can do. What a device can do stands in its facts.",
)
def no_torch(target: Target) -> Outcome:
    if not can_travel(target.descriptor, target.facts):
        return Informational("its functions cannot be imported by name, so a new process cannot call them")
    found = imported_by(ask_all, target.descriptor, target.facts)
    expect(not found, "accepts imports torch")
    return None


@check(
    "ops.names",
    level=0,
    clause="ops/1.0: SCHEMAS: operators known to this version; a provider offers those it has",
    explain="A name is misspelt, or of an operator that the contract does not have: no layer will ever ask for it.",
)
def names(target: Target) -> Figures:
    said = target.descriptor.names
    expect(bool(said), "offers nothing")
    expect(said <= SCHEMAS.keys(), "names what is no operator", observed=sorted(said - SCHEMAS.keys()))
    return {"names": len(said)}


@check(
    "ops.accepts",
    level=0,
    clause="ops/1.0: accepts(facts) is the predicate: yes, or no with the reason",
    explain="It answers with a bool, a no comes without a reason (the user reads it in `srt explain`), or two calls "
    "differ: the choice is made for each layer, and every rank must make the same.",
)
def accepts(target: Target) -> Figures:
    descriptor: OpsDescriptor = target.descriptor
    taken = refused = 0
    for op in (one for one in SIZES if one in descriptor.names):
        for case in cases_of(op, target.facts):
            facts = case.facts(target.facts)
            before = deepcopy(facts)
            answer, again = descriptor.accepts(facts), descriptor.accepts(deepcopy(facts))
            expect(isinstance(answer, Yes | No), "answers neither yes nor no", observed=repr(answer), limit="Answer")
            expect(answer == again, "two calls answer differently", observed=again, limit=answer)
            expect(facts == before, "changes the facts that it is asked about", observed=facts, limit=before)
            if isinstance(answer, No):
                said = bool(answer.reason.strip()) and answer != NOT_DECLARED
                expect(said, f"refuses {op} without a reason", observed=repr(answer.reason))
            taken, refused = taken + bool(answer), refused + (not answer)
    return {"taken": taken, "refused": refused}


@check(
    "ops.unknown_dtype",
    level=0,
    clause="ops/1.0: accepts(facts): no to what it has no kernel for",
    explain="The predicate lists what it refuses in place of what it has: the next dtype that core learns reaches a "
    "kernel that was never made for it.",
)
def unknown_dtype(target: Target) -> Figures:
    descriptor: OpsDescriptor = target.descriptor
    asked = 0
    for op in (one for one in SIZES if one in descriptor.names):
        for case in cases_of(op, target.facts):
            answer = descriptor.accepts(replace(case, dtype="no_such_dtype").facts(target.facts))
            expect(isinstance(answer, No), f"takes {op} in a dtype that does not exist", observed=answer)
            asked += 1
    return {"asked": asked}
