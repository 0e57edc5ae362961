"""Linears that lose, share or spoil their weight, or say what is not so of it."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from srtkit.spec.ops import Op, OpFacts, WeightOp
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.ops.legal import PlainLinear
from srtkit_conformance.mutants.ops.wrap import WrappedLinear, binding, with_linear


def _as_function(op: Op, facts: OpFacts) -> Op:
    if not isinstance(op, WeightOp):
        return op

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        op.pack(weight, bias)
        return op(x)

    return linear


as_function = mutant(
    "ops.as_function",
    of="cpu",
    sentence="Binds linear as a function of input, weight and bias.",
    killed_by=("ops.bind",),
)(binding(_as_function))


class WithoutBias(WrappedLinear):
    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        self.inner.pack(weight, None)


without_bias = mutant(
    "ops.without_bias",
    of="cpu",
    sentence="Leaves the bias out.",
    killed_by=("ops.linear",),
)(with_linear(WithoutBias))


class PacksOnce(WrappedLinear):
    packed = False

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        if not self.packed:
            self.inner.pack(weight, bias)
        self.packed = True


packs_once = mutant(
    "ops.packs_once",
    of="cpu",
    sentence="Keeps what it packed first, also after a reload.",
    killed_by=("ops.packed_again",),
)(with_linear(PacksOnce))


class OnePacking(WrappedLinear):
    """The last packing of each dtype, for all layers."""

    last: ClassVar[dict[str, WeightOp]] = {}

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        self.inner.pack(weight, bias)
        self.last[str(weight.dtype)] = self.inner

    def __call__(self, x: Tensor) -> Tensor:
        return self.last[str(x.dtype)](x)


one_packing = mutant(
    "ops.one_packing",
    of="cpu",
    sentence="Packed weights stand in one place for all layers.",
    killed_by=("ops.own_weight",),
)(with_linear(OnePacking))


class PacksInPlace(WrappedLinear):
    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        self.inner.pack(weight.clone(), bias)
        weight.copy_(weight.flip(0))


packs_in_place = mutant(
    "ops.packs_in_place",
    of="cpu",
    sentence="Reorders the given weight itself.",
    killed_by=("ops.given_weight",),
)(with_linear(PacksInPlace))


class DeniesKeeping(PlainLinear):
    @property
    def keeps_weight(self) -> bool:
        return False


denies_keeping = mutant(
    "ops.denies_keeping",
    of="cpu",
    sentence="Uses the given weight, and says that it may be dropped.",
    killed_by=("ops.keeps_weight",),
    note="the other lie of the two",
)(with_linear(lambda inner: DeniesKeeping()))


class ClaimsKeeping(WrappedLinear):
    @property
    def keeps_weight(self) -> bool:
        return True


claims_keeping = mutant(
    "ops.claims_keeping",
    of="cpu",
    sentence="Packs a copy, and says that the given weight stays in use.",
    killed_by=("ops.keeps_weight",),
)(with_linear(ClaimsKeeping))
