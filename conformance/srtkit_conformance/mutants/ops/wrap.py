"""A provider that hands every call to another one, with one operator exchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from srtkit.spec.ops import Op, OpFacts, OpsBuild, OpsDescriptor, OpsProvider, WeightOp

Make = Callable[[OpsDescriptor], OpsDescriptor]
Change = Callable[[Op], Op]


class WrappedProvider(OpsProvider):
    """`change` is given the operator that was bound, and its facts. Legal as it stands."""

    def __init__(self, inner: OpsProvider, change: Callable[[Op, OpFacts], Op]) -> None:
        self._inner, self._change = inner, change

    def bind(self, facts: OpFacts) -> Op:
        return self._change(self._inner.bind(facts), facts)


class WrappedLinear(WeightOp):
    """Legal as it stands."""

    def __init__(self, inner: WeightOp) -> None:
        self.inner = inner

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        self.inner.pack(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner(x)

    @property
    def keeps_weight(self) -> bool:
        return self.inner.keeps_weight


def binding(change: Callable[[Op, OpFacts], Op]) -> Make:
    """A descriptor whose provider binds something else."""

    def make(descriptor: OpsDescriptor) -> OpsDescriptor:
        def build(given: OpsBuild) -> OpsProvider:
            return WrappedProvider(descriptor.build(given), change)

        return replace(descriptor, build=build)

    return make


def with_op(name: str, change: Change) -> Make:
    """A descriptor that has `change(operator)` for one plain operator."""
    return binding(lambda op, facts: change(op) if facts.op == name else op)


def with_linear(linear: Callable[[WeightOp], WeightOp]) -> Make:
    """A descriptor that has another linear."""
    return binding(lambda op, facts: linear(op) if isinstance(op, WeightOp) else op)
