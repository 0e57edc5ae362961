"""The operators as the contract calls them: shapes, strides and grids around the kernels."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from srtkit.spec.ops import Op, OpFacts, OpsProvider, WeightOp
from srtkit_plugin_ops_triton import kernels

SILU_BLOCK = 1024


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, H] → [T, H]."""
    x = _dense_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, size = x.shape
    if rows:
        block, warps = _row_block(size)
        kernels.rms_norm_kernel[(rows,)](x, weight, out, x.stride(0), eps, H=size, BLOCK=block, num_warps=warps)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`residual` [T, H] += x, in place, then the norm of it."""
    x = _dense_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, size = x.shape
    if rows:
        assert residual.stride(1) == 1, "rows of the residual are dense"
        block, warps = _row_block(size)
        kernels.add_rms_norm_kernel[(rows,)](
            *(x, residual, weight, out, x.stride(0), residual.stride(0), eps), H=size, BLOCK=block, num_warps=warps
        )
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2 I] → [T, I]."""
    gate_up = _dense_rows(gate_up)
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, inner, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        block = min(SILU_BLOCK, triton.next_power_of_2(inner))
        grid = (rows, triton.cdiv(inner, block))
        kernels.silu_mul_kernel[grid](gate_up, out, gate_up.stride(0), INNER=inner, BLOCK=block)
    return out


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotates the first R = cos.shape[-1] of each head of q and k in place; tokens and heads may be strided."""
    tokens, half = q.shape[0], cos.shape[-1] // 2
    if tokens:
        assert q.stride(2) == k.stride(2) == 1, "heads are dense"
        heads, k_heads = q.shape[1], k.shape[1]
        kernels.rope_kernel[(tokens,)](
            *(q, k, cos.contiguous(), sin.contiguous()),
            *(q.stride(0), q.stride(1), k.stride(0), k.stride(1), heads, k_heads),
            HALF=half,
            Q_HEADS=triton.next_power_of_2(heads),
            K_HEADS=triton.next_power_of_2(k_heads),
            BLOCK=triton.next_power_of_2(half),
        )


def _dense_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _row_block(size: int) -> tuple[int, int]:
    """The block that holds a row, and warps for it: at most 16 values a thread of 32."""
    block = int(triton.next_power_of_2(size))
    return block, min(16, max(1, block // 512))


_FUNCTIONS: dict[str, Op] = {"rms_norm": rms_norm, "add_rms_norm": add_rms_norm, "silu_mul": silu_mul, "rope": rope}


class TritonOps(OpsProvider):
    """Hands out the functions above."""

    def bind(self, facts: OpFacts) -> Op | WeightOp:
        return _FUNCTIONS[facts.op]
