"""The operators as the contract calls them: shapes, strides and grids around the kernels."""

from __future__ import annotations

from functools import partial

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from srtkit.spec.ops import Op, OpFacts, OpsProvider, WeightOp
from srtkit_plugin_ops_triton import kernels
from srtkit_plugin_ops_triton.launching import ALONE, Launch, dense_rows, launch_of
from srtkit_plugin_ops_triton.linear import Linear, few_rows_of
from srtkit_plugin_ops_triton.sampling import argmax, penalize, sample

SILU_BLOCK = EMBED_BLOCK = 1024
SHARED_ROWS = 1024
"""Values of a program that norms several short rows."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, launch: Launch = ALONE) -> Tensor:
    """x [T, H] → [T, H]."""
    x = dense_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, size = x.shape
    if rows:
        block, warps = _row_block(size)
        each = max(1, SHARED_ROWS // block)
        kernels.rms_norm_kernel[(triton.cdiv(rows, each),)](
            *(x, weight, out, rows, x.stride(0), eps),
            H=size,
            BLOCK=block,
            ROWS=each,
            num_warps=max(warps, each * block // 512),
            **launch,
        )
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, launch: Launch = ALONE) -> Tensor:
    """`residual` [T, H] += x, in place, then the norm of it."""
    x = dense_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, size = x.shape
    if rows:
        assert residual.stride(1) == 1, "rows of the residual are dense"
        block, warps = _row_block(size)
        arguments = x, residual, weight, out, x.stride(0), residual.stride(0), eps
        kernels.add_rms_norm_kernel[(rows,)](*arguments, H=size, BLOCK=block, num_warps=warps, **launch)
    return out


def embed(ids: Tensor, weight: Tensor, *, launch: Launch = ALONE) -> Tensor:
    """ids int32 [T], weight [V, H] → [T, H]."""
    weight = dense_rows(weight)
    (tokens,), size = ids.shape, weight.shape[1]
    out = torch.empty(tokens, size, dtype=weight.dtype, device=weight.device)
    if tokens:
        block = min(EMBED_BLOCK, triton.next_power_of_2(size))
        kernels.embed_kernel[(tokens, triton.cdiv(size, block))](
            *(ids, weight, out, weight.stride(0)), H=size, BLOCK=block, **launch
        )
    return out


def silu_mul(gate_up: Tensor, *, launch: Launch = ALONE) -> Tensor:
    """[T, 2 I] → [T, I]."""
    gate_up = dense_rows(gate_up)
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, inner, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        block = min(SILU_BLOCK, triton.next_power_of_2(inner))
        grid = (rows, triton.cdiv(inner, block))
        kernels.silu_mul_kernel[grid](gate_up, out, gate_up.stride(0), INNER=inner, BLOCK=block, **launch)
    return out


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, launch: Launch = ALONE) -> None:
    """Rotates the first R = cos.shape[-1] of each head of q and k in place; tokens and heads may be strided."""
    _turn(q, k, (None, None), cos, sin, 0.0, launch)


def norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    *, launch: Launch = ALONE,
) -> None:  # fmt: skip
    """The norm of each head of q and k, then its rotation, in place; rounded once."""
    _turn(q, k, (q_weight, k_weight), cos, sin, eps, launch)


def _turn(
    q: Tensor, k: Tensor, weights: tuple[Tensor | None, Tensor | None], cos: Tensor, sin: Tensor, eps: float,
    launch: Launch,
) -> None:  # fmt: skip
    tokens, half = q.shape[0], cos.shape[-1] // 2
    if tokens:
        assert q.stride(2) == k.stride(2) == 1, "heads are dense"
        heads, k_heads = q.shape[1], k.shape[1]
        kernels.rope_kernel[(tokens,)](
            *(q, k, *weights, cos.contiguous(), sin.contiguous(), eps),
            *(q.stride(0), q.stride(1), k.stride(0), k.stride(1), heads, k_heads),
            NORM=weights[0] is not None,
            HALF=half,
            Q_HEADS=triton.next_power_of_2(heads),
            K_HEADS=triton.next_power_of_2(k_heads),
            BLOCK=triton.next_power_of_2(half),
            **launch,
        )


def _row_block(size: int) -> tuple[int, int]:
    """The block that holds a row, and warps for it: at most 16 values a thread of 32."""
    block = int(triton.next_power_of_2(size))
    return block, min(16, max(1, block // 512))


_FUNCTIONS: dict[str, Op] = {
    op.__name__: op for op in (rms_norm, add_rms_norm, silu_mul, rope, norm_rope, embed, argmax, sample, penalize)
}


class TritonOps(OpsProvider):
    """Hands out the functions above."""

    def bind(self, facts: OpFacts) -> Op | WeightOp:
        launch = launch_of(facts.device)
        return (
            Linear(launch, few_rows_of(facts)) if facts.op == "linear" else partial(_FUNCTIONS[facts.op], launch=launch)
        )
