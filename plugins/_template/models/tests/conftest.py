"""What a runner gives a model, in its simplest form: operators in plain torch, and one sequence's attention."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionParts,
    AttentionPlan,
    AttentionSpec,
    Batch,
    GroupView,
    LayerHandle,
    Rows,
)
from srtkit.spec.facts import Limits
from srtkit.spec.ops import Op, OpBinder, WeightOp


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(residual.add_(x), weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    for x in (q, k):
        x.copy_(x * cos + x.roll(x.shape[-1] // 2, -1) * sin)


class PlainLinear(WeightOp):
    """Keeps a copy, as an operator does that packs: the model must not rely on its own tensor."""

    def __init__(self) -> None:
        self._weight = torch.empty(0)

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight.clone()

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight)

    @property
    def keeps_weight(self) -> bool:
        return False


def embed(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[ids]


OPERATORS: dict[str, Op] = {op.__name__: op for op in (rms_norm, add_rms_norm, silu_mul, rope, embed)}


class PlainOps(OpBinder):
    """The operators above, by name."""

    def op(self, name: str, dtype: str, **sizes: int) -> Op:
        return OPERATORS[name]

    def weight_op(self, name: str, dtype: str, **sizes: int) -> WeightOp:
        return PlainLinear()


class NoPlan(AttentionPlan):
    """One sequence needs none."""

    def close(self) -> None:
        pass


class OneSequence(AttentionBackend):
    """Every step's tokens follow those of the step before, in one sequence without pages."""

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._k = torch.empty(0, spec.kv_heads, spec.head_dim)
        self._v = torch.empty(0, spec.kv_heads, spec.v_head_dim)

    def new_plan(self, limits: Limits) -> AttentionPlan:
        return NoPlan()

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        pass

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        self._k, self._v = torch.cat((self._k, k)), torch.cat((self._v, v))

    def attend(
        self,
        plan: AttentionPlan,
        layer: LayerHandle,
        q: Tensor,
        out: Tensor,
        *,
        rows: Rows = Rows.ALL,
        fresh: tuple[Tensor, Tensor] | None = None,
        lse: Tensor | None = None,
    ) -> None:
        k, v = (x.repeat_interleave(self._spec.q_heads // self._spec.kv_heads, 1) for x in (self._k, self._v))
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=self._spec.scale)
        out.copy_(attended.transpose(0, 1))

    def parts(self) -> AttentionParts:
        return AttentionParts()

    def close(self) -> None:
        pass


@pytest.fixture
def ops() -> OpBinder:
    return PlainOps()


@pytest.fixture
def one_sequence() -> Callable[[AttentionSpec], AttentionBackend]:
    return OneSequence
