"""Providers that say what is not so, or do not say it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle

from srtkit.spec.capabilities import YES, Answer, No
from srtkit.spec.ops import OpFacts, OpsDescriptor
from srtkit_conformance.mutant import mutant

ALONE = "another way to be found by this check alone"


def _asks_torch(inner: Callable[[OpFacts], Answer], facts: OpFacts) -> Answer:
    import torch

    torch.empty(0)
    return inner(facts)


@mutant("ops.asks_torch", of="cpu", sentence="The predicate imports torch.", killed_by=("ops.no_torch",))
def asks_torch(descriptor: OpsDescriptor) -> OpsDescriptor:
    return replace(descriptor, accepts=partial(_asks_torch, descriptor.accepts))


@mutant("ops.misspelt", of="cpu", sentence="Offers an operator that does not exist.", killed_by=("ops.names",))
def misspelt(descriptor: OpsDescriptor) -> OpsDescriptor:
    return replace(descriptor, names=descriptor.names | {"rmsnorm"})


@mutant(
    "ops.moody",
    of="cpu",
    sentence="Every third answer of the predicate is a no.",
    killed_by=("ops.accepts",),
    note=ALONE,
)
def moody(descriptor: OpsDescriptor) -> OpsDescriptor:
    turn = cycle((True, True, False))
    return replace(descriptor, accepts=lambda facts: descriptor.accepts(facts) if next(turn) else No("is busy"))


@mutant("ops.silent_no", of="cpu", sentence="Refuses without a reason.", killed_by=("ops.accepts",), note=ALONE)
def silent_no(descriptor: OpsDescriptor) -> OpsDescriptor:
    return replace(descriptor, accepts=lambda facts: YES if descriptor.accepts(facts) else No())


@mutant(
    "ops.refuses_by_list",
    of="cpu",
    sentence="Takes every dtype but those that it knows it has not.",
    killed_by=("ops.unknown_dtype",),
)
def refuses_by_list(descriptor: OpsDescriptor) -> OpsDescriptor:
    return replace(
        descriptor,
        accepts=lambda facts: No("has no float16") if facts.dtype == "float16" else YES,
    )
