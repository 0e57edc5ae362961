"""Providers that offer operators of experts, too: legal ones in torch, and wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.capabilities import Answer
from srtkit.spec.ops import ExpertsOp, Op, OpFacts, OpsBuild, OpsDescriptor, OpsProvider
from srtkit_conformance.mutant import mutant, variant
from srtkit_conformance.mutants.ops.wrap import Make, WrappedProvider


class Looping(ExpertsOp):
    """Legal: expert by expert, in float32, on the weights as loaded."""

    def pack(self, gate_up: Tensor, down: Tensor) -> bool:
        self.gate_up, self.down = gate_up, down
        return True

    def __call__(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in range(len(self.down)):
            row, place = (experts == expert).nonzero(as_tuple=True)
            gate, up = (x[row].float() @ self.gate_up[expert].float().T).chunk(2, -1)
            word = (F.silu(gate) * up) @ self.down[expert].float().T
            out.index_add_(0, row, weights[row, place, None] * word)
        return out.to(x.dtype)


def routing(facts: OpFacts, *, over_chosen: bool = False) -> Op:
    """Legal, unless told otherwise: `over_chosen`, the softmax is that of the chosen always."""
    k, renormalised = facts.sizes["per_token"], facts.sizes["renormalised"] or over_chosen

    def route(logits: Tensor) -> tuple[Tensor, Tensor]:
        likely, experts = logits.float().softmax(-1).sort(-1, descending=True)
        weights = likely[:, :k]
        return (weights / weights.sum(-1, keepdim=True) if renormalised else weights.clone()), experts[:, :k].clone()

    return route


def offering(route: Callable[[OpFacts], Op], experts: Callable[[], ExpertsOp]) -> Make:
    """A descriptor that has these two operators, too."""

    def make(descriptor: OpsDescriptor) -> OpsDescriptor:
        def accepts(facts: OpFacts) -> Answer:
            return descriptor.accepts(replace(facts, op="rms_norm") if facts.op in ("route", "experts") else facts)

        def build(given: OpsBuild) -> OpsProvider:
            return Offering(descriptor.build(given), route, experts)

        return replace(descriptor, names=descriptor.names | {"route", "experts"}, accepts=accepts, build=build)

    return make


class Offering(WrappedProvider):
    """Those of another provider, and these."""

    def __init__(self, inner: OpsProvider, route: Callable[[OpFacts], Op], experts: Callable[[], ExpertsOp]) -> None:
        super().__init__(inner, lambda op, facts: op)
        self._route, self._experts = route, experts

    def bind(self, facts: OpFacts) -> Op:
        if facts.op == "experts":
            return self._experts()
        return self._route(facts) if facts.op == "route" else super().bind(facts)


experts = variant("ops.with_experts", of="cpu", sentence="Offers operators of experts.")(offering(routing, Looping))

over_chosen = mutant(
    "ops.over_chosen",
    of="cpu",
    sentence="The weights of a token's experts are made to sum to 1 always.",
    killed_by=("ops.route",),
)(offering(lambda facts: routing(facts, over_chosen=True), Looping))


class UpForGate(Looping):
    def pack(self, gate_up: Tensor, down: Tensor) -> bool:
        super().pack(gate_up.roll(gate_up.shape[1] // 2, 1), down)
        return False


up_for_gate = mutant(
    "ops.experts_up_for_gate",
    of="cpu",
    sentence="Takes the experts' first half for up, the second for gate.",
    killed_by=("ops.experts",),
)(offering(routing, UpForGate))


class Denying(Looping):
    def pack(self, gate_up: Tensor, down: Tensor) -> bool:
        super().pack(gate_up, down)
        return False


denies_experts = mutant(
    "ops.denies_experts",
    of="cpu",
    sentence="Uses the experts' weights as given, and says that they may be dropped.",
    killed_by=("ops.experts_weights",),
)(offering(routing, Denying))
