"""Linears as Triton kernels: one row, and a few. A weight is read once, as fast as memory gives it.

Its first part is on its way before the kernel before has ended (`EARLY`, see kernels.py): nobody writes it.
"""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from srtkit_plugin_ops_triton.kernels import _begin

LINE: tl.constexpr = tl.constexpr(64)
"""Values of 16 bits that the L2 cache fetches at once."""


@triton.jit
def row_linear_kernel(
    x, weight, bias, out, N,
    K: tl.constexpr, BIAS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of outputs): one row times a weight [N, K], which is read once, as fast as memory gives it.

    Every output is summed by one program in one order: the same bits every time.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    inside = (n < N)[:, None]
    rows = weight + n.to(tl.int64)[:, None] * K
    part = tl.load(rows + k[None, :], mask=inside & (k < K)[None, :], other=0.0, eviction_policy="evict_first")
    _begin(EARLY)
    acc = part.to(tl.float32) * tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)[None, :]
    for start in tl.range(BLOCK_K, K, BLOCK_K):
        at = start + k
        values = tl.load(x + at, mask=at < K, other=0.0).to(tl.float32)
        part = tl.load(rows + at[None, :], mask=inside & (at < K)[None, :], other=0.0, eviction_policy="evict_first")
        acc += part.to(tl.float32) * values[None, :]
    total = tl.sum(acc, 1)
    if BIAS:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out + n, total.to(out.dtype.element_ty), mask=n < N)


@triton.jit
def few_rows_linear_kernel(
    x, weight, bias, out, parts, arrived, T, N, x_row,
    SPAN: tl.constexpr, SPLITS: tl.constexpr, BIAS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of outputs, SPLITS): at most BLOCK_T rows x [T, K] times a weight [N, K], values of 16 bits.

    K = SPLITS * SPAN, a multiple of BLOCK_K each. With several splits each leaves its sums in `parts` [blocks, SPLITS,
    BLOCK_T, BLOCK_N] (float32); the last of a block to arrive adds them, always in the same order, and leaves `arrived`
    [blocks] at 0 as it was. The first AHEAD lines of a split's rows are fetched into the L2 cache before the wait.
    """
    block, split = tl.program_id(0), tl.program_id(1)
    n, t, k = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K)
    there = (t < T)[:, None]
    tokens = x + t[:, None].to(tl.int64) * x_row + split * SPAN
    rows = weight + tl.minimum(n, N - 1).to(tl.int64) * (SPLITS * SPAN) + split * SPAN
    if EARLY:
        _fetch(rows[:, None] + tl.minimum(tl.arange(0, AHEAD) * LINE, SPAN - 1)[None, :])
    _begin(EARLY)
    acc = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for at in tl.range(0, SPAN, BLOCK_K, num_stages=STAGES):
        values = tl.load(tokens + (at + k)[None, :], mask=there, other=0.0)
        acc = tl.dot(values, tl.load(rows[None, :] + (at + k)[:, None]), acc)
    own = t[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    if SPLITS > 1:
        sums = parts + block.to(tl.int64) * (SPLITS * BLOCK_T * BLOCK_N) + own
        tl.store(sums + split * (BLOCK_T * BLOCK_N), acc)
        tl.debug_barrier()  # all of the program's sums, before it says that they are there
        if tl.atomic_add(arrived + block, 1) == SPLITS - 1:
            acc = tl.load(sums, cache_modifier=".cg")
            for other in range(1, SPLITS):
                acc += tl.load(sums + other * (BLOCK_T * BLOCK_N), cache_modifier=".cg")
            tl.store(arrived + block, 0)
            _finish(acc, bias, out, t, n, T, N, BIAS)
    else:
        _finish(acc, bias, out, t, n, T, N, BIAS)


@triton.jit
def _finish(acc, bias, out, t, n, T, N, BIAS: tl.constexpr):
    """Add the bias, and write the rows and outputs that there are."""
    if BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    at = out + t[:, None].to(tl.int64) * N + n[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=(t < T)[:, None] & (n < N)[None, :])


@triton.jit
def _fetch(at):
    """Bring the cache lines of these addresses into the L2 cache; nothing waits for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
    )
