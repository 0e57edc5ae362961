"""The operators as Triton kernels: float32 inside, rounded to the dtype where the contract rounds.

`EARLY` kernels are launched while the one before them still runs (NVIDIA's programmatic dependent launch): they
wait for its end before they read what it wrote, and let their own successor begin at once.
"""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _begin(EARLY: tl.constexpr):
    """Let the next kernel come, and wait for the one before."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def _normed(x, weight, eps, H: tl.constexpr):
    scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / H + eps)
    return x * scale * weight


@triton.jit
def rms_norm_kernel(
    x, weight, out, rows, x_row, eps, H: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, EARLY: tl.constexpr
):
    """Grid (blocks of ROWS rows): x / rms(x) * weight. Short rows, as heads are, share a program."""
    _begin(EARLY)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    i = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (i < H)
    values = tl.load(x + row * x_row + i, mask=mask, other=0.0).to(tl.float32)
    gain = tl.load(weight + i, mask=i < H, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, 1, keep_dims=True) / H + eps)
    tl.store(out + row * H + i, (values * scale * gain).to(out.dtype.element_ty), mask=mask)


@triton.jit
def add_rms_norm_kernel(
    x, residual, weight, out, x_row, residual_row, eps, H: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """Grid (rows): residual += x, rounded; then the norm of what was kept."""
    _begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    values = tl.load(x + row * x_row + i, mask=i < H, other=0.0).to(tl.float32)
    before = tl.load(residual + row * residual_row + i, mask=i < H, other=0.0).to(tl.float32)
    kept = (values + before).to(residual.dtype.element_ty)
    tl.store(residual + row * residual_row + i, kept, mask=i < H)
    gain = tl.load(weight + i, mask=i < H, other=0.0).to(tl.float32)
    tl.store(out + row * H + i, _normed(kept.to(tl.float32), gain, eps, H).to(out.dtype.element_ty), mask=i < H)


@triton.jit
def embed_kernel(ids, weight, out, weight_row, H: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Grid (tokens, blocks of H): the row of the weight that a token's id names."""
    _begin(EARLY)
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ids + token).to(tl.int64)
    tl.store(out + token * H + i, tl.load(weight + row * weight_row + i, mask=i < H), mask=i < H)


@triton.jit
def silu_mul_kernel(gate_up, out, row_stride, INNER: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Grid (rows, blocks of the inner size): silu(gate) * up."""
    _begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_up + row * row_stride + i, mask=i < INNER, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + INNER + i, mask=i < INNER, other=0.0).to(tl.float32)
    silu = gate / (1.0 + tl.exp(-gate))
    tl.store(out + row * INNER + i, (silu * up).to(out.dtype.element_ty), mask=i < INNER)


@triton.jit
def _turn(
    x, weight, cos, sin, eps, token_stride, head_stride, heads,
    NORM: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token's heads in place, normed first if wanted: i and i + HALF are a point that is turned."""
    token = tl.program_id(0).to(tl.int64)
    head, i = tl.arange(0, HEADS), tl.arange(0, BLOCK)
    there = i < HALF
    mask = (head < heads)[:, None] & there[None, :]
    at = x + token * token_stride + head[:, None] * head_stride + i[None, :]
    first = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first + second * second, 1, keep_dims=True)
        scale = 1.0 / tl.sqrt_rn(squares / (2 * HALF) + eps)
        first *= scale * tl.load(weight + i, mask=there, other=0.0).to(tl.float32)[None, :]
        second *= scale * tl.load(weight + HALF + i, mask=there, other=0.0).to(tl.float32)[None, :]
    angle = token * (2 * HALF) + i
    cos_1 = tl.load(cos + angle, mask=there, other=0.0).to(tl.float32)[None, :]
    cos_2 = tl.load(cos + angle + HALF, mask=there, other=0.0).to(tl.float32)[None, :]
    sin_1 = tl.load(sin + angle, mask=there, other=0.0).to(tl.float32)[None, :]
    sin_2 = tl.load(sin + angle + HALF, mask=there, other=0.0).to(tl.float32)[None, :]
    tl.store(at, (first * cos_1 + second * sin_1).to(x.dtype.element_ty), mask=mask)
    tl.store(at + HALF, (second * cos_2 + first * sin_2).to(x.dtype.element_ty), mask=mask)


@triton.jit
def rope_kernel(
    q, k, q_weight, k_weight, cos, sin, eps, q_token, q_head, k_token, k_head, q_heads, k_heads,
    NORM: tl.constexpr, HALF: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (tokens): query and key heads of a token."""
    _begin(EARLY)
    _turn(q, q_weight, cos, sin, eps, q_token, q_head, q_heads, NORM, HALF, Q_HEADS, BLOCK)
    _turn(k, k_weight, cos, sin, eps, k_token, k_head, k_heads, NORM, HALF, K_HEADS, BLOCK)
