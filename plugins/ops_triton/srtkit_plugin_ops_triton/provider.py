"""The operators as the contract calls them: shapes, strides and grids around the kernels."""

from __future__ import annotations

from functools import partial

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn import functional

from srtkit.spec.ops import Op, OpFacts, OpsProvider, WeightOp
from srtkit_plugin_ops_triton import kernels
from srtkit_plugin_ops_triton.launching import ALONE, Launch, dense_rows, launch_of
from srtkit_plugin_ops_triton.sampling import argmax, penalize, sample

SILU_BLOCK = EMBED_BLOCK = 1024
SHARED_ROWS = 1024
"""Values of a program that norms several short rows."""
MAX_BLOCK_K, MANY_OUTPUTS = 1024, 2048
"""Of a linear of one row: inputs of a turn; outputs from which on a program has two of them."""


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


class Linear(WeightOp):
    """One row by a kernel that keeps memory busy, where libraries leave half of it idle; more rows by theirs."""

    def __init__(self, launch: Launch = ALONE) -> None:
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self._blocks = 1, 1, 4
        self._launch = launch

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keeps both as they are."""
        self._weight, self._bias = weight.contiguous(), bias
        self._blocks = linear_blocks(*weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] → [T, out]."""
        weight = self._weight
        assert weight is not None, "called before pack"
        if x.shape[0] != 1:
            return functional.linear(x, weight, self._bias)
        x = dense_rows(x)
        (n, k), (block_n, block_k, warps) = weight.shape, self._blocks
        out = torch.empty(1, n, dtype=x.dtype, device=x.device)
        kernels.row_linear_kernel[(triton.cdiv(n, block_n),)](
            *(x, weight, self._bias, out, n),
            K=k,
            BIAS=self._bias is not None,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            num_warps=warps,
            **self._launch,
        )
        return out

    @property
    def keeps_weight(self) -> bool:
        """The loaded tensor itself."""
        return True


def linear_blocks(n: int, k: int) -> tuple[int, int, int]:
    """Outputs of a program, inputs of a turn, and warps, as measured on an H200 (bench/gpu/linear.py --sweep).

    Few outputs: many programs hide each other's waits. Long rows keep more warps busy.
    """
    block_k = min(MAX_BLOCK_K, int(triton.next_power_of_2(k)))
    return 2 if k <= MAX_BLOCK_K and n > MANY_OUTPUTS else 1, block_k, 4 if k <= 2 * MAX_BLOCK_K else 8


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
        return Linear(launch) if facts.op == "linear" else partial(_FUNCTIONS[facts.op], launch=launch)
