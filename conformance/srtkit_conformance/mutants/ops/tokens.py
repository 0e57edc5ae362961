"""Providers that offer argmax and sample, too: a legal one in torch, and those that choose wrongly."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from srtkit.spec.capabilities import Answer
from srtkit.spec.ops import Op, OpFacts, OpsBuild, OpsDescriptor, OpsProvider
from srtkit_conformance.kits.ops.tokens import uniform
from srtkit_conformance.mutant import mutant, variant
from srtkit_conformance.mutants.ops.wrap import Make, WrappedProvider


def argmax(logits: Tensor) -> Tensor:
    """Legal."""
    return logits.argmax(-1).int()


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seed: Tensor, position: Tensor,
    *, share_of_all: bool = False, by_place: bool = False,
) -> Tensor:  # fmt: skip
    """Legal, unless told otherwise: `share_of_all`, top-p of all weights; `by_place`, u of the row's place."""
    out = argmax(logits)
    for row in (temperature > 0).nonzero().flatten().tolist():
        weight = torch.softmax(logits[row].double() / temperature[row], -1)
        all_of, kept = weight.sum(), weight >= min_p[row] * weight.max()
        order = torch.arange(len(weight), device=weight.device)
        if top_k[row] > 0 or top_p[row] < 1:
            order = logits[row].float().argsort(descending=True, stable=True)
            weight, kept = weight[order], kept[order]
            if top_k[row] > 0:
                weight[int(top_k[row]) :] = 0
            inside = weight.cumsum(0) - weight < top_p[row] * (all_of if share_of_all else weight.sum())
            inside[0] = True
            kept = kept & inside
        after = torch.where(kept, weight, 0.0).cumsum(0)
        u = uniform(row if by_place else int(seed[row]), int(position[row]))
        place = int((after <= u * after[-1]).sum())
        out[row] = order[min(place, len(order) - 1)]
    return out


def offering(**ops: Op) -> Make:
    """A descriptor that has these operators, too."""

    def make(descriptor: OpsDescriptor) -> OpsDescriptor:
        def accepts(facts: OpFacts) -> Answer:
            return descriptor.accepts(replace(facts, op="rms_norm") if facts.op in ops else facts)

        def build(given: OpsBuild) -> OpsProvider:
            return Offering(descriptor.build(given), ops)

        return replace(descriptor, names=descriptor.names | ops.keys(), accepts=accepts, build=build)

    return make


class Offering(WrappedProvider):
    """Those of another provider, and these."""

    def __init__(self, inner: OpsProvider, ops: dict[str, Op]) -> None:
        super().__init__(inner, lambda op, facts: op)
        self._ops = ops

    def bind(self, facts: OpFacts) -> Op:
        return self._ops[facts.op] if facts.op in self._ops else super().bind(facts)


tokens = variant("ops.tokens", of="cpu", sentence="Offers argmax and sample.")(offering(argmax=argmax, sample=sample))


def _last(logits: Tensor) -> Tensor:
    return logits.shape[-1] - 1 - logits.flip(-1).argmax(-1).int()


last_of_equals = mutant(
    "ops.last_of_equals",
    of="cpu",
    sentence="Of equal logits argmax gives the last.",
    killed_by=("ops.argmax",),
)(offering(argmax=_last))


share_of_all = mutant(
    "ops.share_of_all",
    of="cpu",
    sentence="top-p is a share of all weights where top-k has left a part of them.",
    killed_by=("ops.sample",),
)(offering(sample=partial(sample, share_of_all=True)))


by_place = mutant(
    "ops.by_place",
    of="cpu",
    sentence="A row's random number is that of its place in the batch.",
    killed_by=("ops.sample",),
)(offering(sample=partial(sample, by_place=True)))
