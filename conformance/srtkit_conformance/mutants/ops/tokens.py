"""Providers that offer operators of token ids, too: a legal one in torch, and wrong ones."""

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


def embed(ids: Tensor, weight: Tensor) -> Tensor:
    """Legal."""
    return weight[ids]


def penalize(
    logits: Tensor, slot: Tensor, counts: Tensor, prompted: Tensor, repetition: Tensor, presence: Tensor,
    frequency: Tensor, *, prompt_forgotten: bool = False,
) -> None:  # fmt: skip
    """Legal, unless told otherwise: `prompt_forgotten`, only what was generated is penalised."""
    count = counts[slot]
    known = count > 0 if prompt_forgotten else (count > 0) | prompted[slot]
    wide, factor = logits.float(), torch.where(known, repetition[:, None], 1.0)
    less = presence[:, None] * (count > 0) + frequency[:, None] * count
    logits.copy_(torch.where(wide > 0, wide / factor, wide * factor) - less)


def argmax(logits: Tensor) -> Tensor:
    """Legal."""
    return logits.argmax(-1).int()


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seed: Tensor, position: Tensor,
    *, fault: str = "",
) -> Tensor:  # fmt: skip
    """Legal without `fault`. "all": top-p is of all weights; "place": u is of the row's place."""
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
            inside = weight.cumsum(0) - weight < top_p[row] * (all_of if fault == "all" else weight.sum())
            inside[0] = True
            kept = kept & inside
        after = torch.where(kept, weight, 0.0).cumsum(0)
        u = uniform(row if fault == "place" else int(seed[row]), int(position[row]))
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


tokens = variant("ops.tokens", of="cpu", sentence="Offers operators that begin and end with token ids.")(
    offering(embed=embed, argmax=argmax, sample=sample, penalize=penalize)
)


def _scaled(ids: Tensor, weight: Tensor) -> Tensor:
    return (weight.float() * 1.01)[ids].to(weight.dtype)


scaled_rows = mutant(
    "ops.scaled_rows",
    of="cpu",
    sentence="The embedding is scaled on the way.",
    killed_by=("ops.embed",),
)(offering(embed=_scaled))


prompt_forgotten = mutant(
    "ops.prompt_forgotten",
    of="cpu",
    sentence="A repetition of the prompt is not penalised.",
    killed_by=("ops.penalize",),
)(offering(penalize=partial(penalize, prompt_forgotten=True)))


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
)(offering(sample=partial(sample, fault="all")))


by_place = mutant(
    "ops.by_place",
    of="cpu",
    sentence="A row's random number is that of its place in the batch.",
    killed_by=("ops.sample",),
)(offering(sample=partial(sample, fault="place")))
