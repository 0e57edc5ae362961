"""Legal providers: one without packing, one with few operators, one that computes in float64."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.capabilities import Answer, No
from srtkit.spec.ops import Op, OpFacts, OpsDescriptor, WeightOp
from srtkit_conformance.mutant import variant
from srtkit_conformance.mutants.ops.wrap import with_linear, with_op


class PlainLinear(WeightOp):
    """On the weight as it was loaded."""

    def __init__(self) -> None:
        self._weight = torch.empty(0)
        self._bias: Tensor | None = None

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)

    @property
    def keeps_weight(self) -> bool:
        return True


plain_linear = variant("ops.plain_linear", of="cpu", sentence="Keeps the weight as it is.")(
    with_linear(lambda inner: PlainLinear())
)


@variant("ops.norms_only", of="cpu", sentence="Offers the norms, of sizes in multiples of 64.")
def norms_only(descriptor: OpsDescriptor) -> OpsDescriptor:
    def accepts(facts: OpFacts) -> Answer:
        return No("wants a multiple of 64") if facts.sizes["hidden"] % 64 else descriptor.accepts(facts)

    return replace(descriptor, names=frozenset({"rms_norm", "add_rms_norm"}), accepts=accepts)


def _exact(inner: Op) -> Op:
    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.double()
        return (wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()).to(x.dtype)

    return rms_norm


exact_norm = variant("ops.exact_norm", of="cpu", sentence="Computes norms in float64.")(with_op("rms_norm", _exact))
