"""The operators themselves: torch's own CPU kernels, in the arrangement that costs least per step.

At one row a kernel's launch (1 to 4 µs) outweighs its work, so what counts is how few there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.ops import Op, OpFacts, OpsProvider, WeightOp

PART = "ops:cpu"
# oneDNN picks the blocked form for this many rows, and one form serves every number of rows. With 1 it
# leaves float32 weights as they are; from 2 on the form is the same.
PACK_ROWS = 32


@lru_cache
def _scalar(value: float) -> Tensor:
    """As a tensor [1]: a Python number would be wrapped anew by every call, which costs as much as the call."""
    return torch.tensor([value])


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, H] → [T, H]; float32 inside. `torch.rms_norm` does the same in twice as many kernels."""
    wide = x.float()
    length = torch.linalg.vector_norm(wide, 2, -1, True)
    scale = torch.addcmul(_scalar(eps), length, length, value=1 / x.shape[-1]).rsqrt_()
    return (wide * scale).type_as(x).mul_(weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`residual` += x, then the norm of it."""
    return rms_norm(residual.add_(x), weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2 I] → [T, I]; silu is computed in float32 and rounded before the product."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotates in place; q and k at once where they stand side by side, as slices of a fused qkv do."""
    if _side_by_side(q, k):
        _rotate(q.as_strided((q.shape[0], q.shape[1] + k.shape[1], q.shape[2]), q.stride()), cos, sin)
        return
    _rotate(q, cos, sin)
    _rotate(k, cos, sin)


def norm_rope(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> None:
    """The norm of each head of q and k, then its rotation, in place."""
    q.copy_(rms_norm(q, q_weight, eps))
    k.copy_(rms_norm(k, k_weight, eps))
    rope(q, k, cos, sin)


def _side_by_side(q: Tensor, k: Tensor) -> bool:
    end = q.data_ptr() + q.shape[1] * q.stride(1) * q.element_size()
    return k.data_ptr() == end and k.stride() == q.stride()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    size = cos.shape[-1]
    if size < x.shape[-1]:
        x = x[..., :size]
    swapped = x.roll(size // 2, -1)
    x.mul_(cos).addcmul_(swapped, sin)


class PackedLinear(WeightOp):
    """A linear whose weight stands in oneDNN's blocked form; the plain weight is not kept."""

    def __init__(self) -> None:
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self._linear: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x, self._weight, self._bias, "none", [], "")

    @property
    def keeps_weight(self) -> bool:
        return False


_FUNCTIONS: dict[str, Op] = {
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "silu_mul": silu_mul,
    "rope": rope,
    "norm_rope": norm_rope,
}


class CpuOps(OpsProvider):
    """Hands out the functions above; every linear gets its own `PackedLinear`."""

    def __init__(self) -> None:
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            raise DeviceAbsent(PART, "this torch was built without oneDNN", "leave cpu out of [ops] use")

    def bind(self, facts: OpFacts) -> Op | WeightOp:
        return PackedLinear() if facts.op == "linear" else _FUNCTIONS[facts.op]
