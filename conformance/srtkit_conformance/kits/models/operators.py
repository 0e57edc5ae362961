"""The operators that a model binds, in plain torch: the suite needs no provider. Knows no model."""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.ops import SCHEMAS, Op, OpBinder, WeightOp
from srtkit_conformance.check import Failed


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In float32, rounded once."""
    wide = x.float()
    return (wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The residual grows in place."""
    return rms_norm(residual.add_(x), weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """The first half is the gate."""
    gate, up = gate_up.float().chunk(2, -1)
    return (gate * gate.sigmoid() * up).to(gate_up.dtype)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """In place."""
    size = cos.shape[-1]
    for part in (q[..., :size], k[..., :size]):
        part.copy_(part * cos + part.roll(size // 2, -1) * sin)


def norm_rope(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> None:
    """In place."""
    q.copy_(rms_norm(q, q_weight, eps))
    k.copy_(rms_norm(k, k_weight, eps))
    rope(q, k, cos, sin)


def embed(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows."""
    return weight[ids]


class OwnCopy(WeightOp):
    """A linear that keeps a copy, as one does that packs: the model must not rely on its own tensor."""

    def __init__(self) -> None:
        self._weight = torch.empty(0)
        self._bias: Tensor | None = None

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight.clone(), None if bias is None else bias.clone()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self._weight, self._bias)

    @property
    def keeps_weight(self) -> bool:
        return False


class OnTheWeight(OwnCopy):
    """A linear that uses the model's own tensors."""

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    @property
    def keeps_weight(self) -> bool:
        return True


_PLAIN: dict[str, Op] = {one.__name__: one for one in (rms_norm, add_rms_norm, silu_mul, rope, norm_rope, embed)}


class PlainOps(OpBinder):
    """`keeps`: linears work on the loaded weight."""

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps

    def op(self, name: str, dtype: str, **sizes: int) -> Op:
        if name not in _PLAIN:
            raise Failed("asks for an operator that the contract does not have", observed=name, limit=sorted(SCHEMAS))
        return _PLAIN[name]

    def weight_op(self, name: str, dtype: str, **sizes: int) -> WeightOp:
        if name != "linear":
            raise Failed("asks for a weight-side operator that the contract does not have", observed=name)
        return OnTheWeight() if self._keeps else OwnCopy()
