"""Small Triton kernels around the operator: stored tokens, moved tokens, and page tables that hide freed pages.

Addresses are 64-bit from the page on. Knows no steps.
"""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_kernel(
    k, v, k_plane, v_plane, slots, k_token, v_token, k_page, v_page,
    PAGE: tl.constexpr, K_WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
):  # fmt: skip
    """Grid (tokens): the heads of a token, K_WIDTH and V_WIDTH elements, go to its slot in both planes."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    page, place = slot // PAGE, slot % PAGE
    i, j = tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    key = tl.load(k + token * k_token + i, mask=i < K_WIDTH)
    value = tl.load(v + token * v_token + j, mask=j < V_WIDTH)
    tl.store(k_plane + page * k_page + place * K_WIDTH + i, key, mask=i < K_WIDTH)
    tl.store(v_plane + page * v_page + place * V_WIDTH + j, value, mask=j < V_WIDTH)


@triton.jit
def move_kernel(
    k_plane, v_plane, source, target, k_page, v_page,
    PAGE: tl.constexpr, K_WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
):  # fmt: skip
    """Grid (moves): what stands at a source slot of both planes goes to its target slot."""
    move = tl.program_id(0)
    come, go = tl.load(source + move).to(tl.int64), tl.load(target + move).to(tl.int64)
    i, j = tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    key = tl.load(k_plane + come // PAGE * k_page + come % PAGE * K_WIDTH + i, mask=i < K_WIDTH)
    value = tl.load(v_plane + come // PAGE * v_page + come % PAGE * V_WIDTH + j, mask=j < V_WIDTH)
    tl.store(k_plane + go // PAGE * k_page + go % PAGE * K_WIDTH + i, key, mask=i < K_WIDTH)
    tl.store(v_plane + go // PAGE * v_page + go % PAGE * V_WIDTH + j, value, mask=j < V_WIDTH)


@triton.jit(do_not_specialize=["width", "table_row", "out_row"])
def visible_kernel(
    table, out, cu_q, context_of, width, table_row, out_row,
    WINDOW: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, blocks of columns): a copy of `table` with page 0 for pages wholly before every query's window."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n_query = tl.load(cu_q + row + 1) - tl.load(cu_q + row)
    first = tl.maximum(tl.load(context_of + row) - n_query - WINDOW + 1, 0) // PAGE
    page = tl.load(table + row.to(tl.int64) * table_row + column, mask=(column < width) & (column >= first), other=0)
    tl.store(out + row.to(tl.int64) * out_row + column, page, mask=column < width)
