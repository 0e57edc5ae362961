"""Small Triton kernels around the library: stored tokens, moved tokens, and the flat list of a step's pages.

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
    PAGE: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Grid (tokens): the heads of a token, WIDTH elements of k and as many of v, go to its slot in both planes."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    page, place = slot // PAGE, slot % PAGE * WIDTH
    i = tl.arange(0, PAD)
    key = tl.load(k + token * k_token + i, mask=i < WIDTH)
    value = tl.load(v + token * v_token + i, mask=i < WIDTH)
    tl.store(k_plane + page * k_page + place + i, key, mask=i < WIDTH)
    tl.store(v_plane + page * v_page + place + i, value, mask=i < WIDTH)


@triton.jit
def move_kernel(
    k_plane, v_plane, source, target, k_page, v_page,
    PAGE: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Grid (moves): what stands at a source slot of both planes goes to its target slot."""
    move = tl.program_id(0)
    come, go = tl.load(source + move).to(tl.int64), tl.load(target + move).to(tl.int64)
    i = tl.arange(0, PAD)
    key = tl.load(k_plane + come // PAGE * k_page + come % PAGE * WIDTH + i, mask=i < WIDTH)
    value = tl.load(v_plane + come // PAGE * v_page + come % PAGE * WIDTH + i, mask=i < WIDTH)
    tl.store(k_plane + go // PAGE * k_page + go % PAGE * WIDTH + i, key, mask=i < WIDTH)
    tl.store(v_plane + go // PAGE * v_page + go % PAGE * WIDTH + i, value, mask=i < WIDTH)


@triton.jit(do_not_specialize=["table_row"])
def pages_kernel(
    table, indptr, pages, cu_q, context_of, table_row,
    WINDOW: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, blocks of pages): row r's pages go to pages[indptr[r] : indptr[r + 1]].

    With a window page 0 stands for pages wholly before every query's window, which may be freed.
    """
    row = tl.program_id(0)
    begin, end = tl.load(indptr + row), tl.load(indptr + row + 1)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    seen = column < end - begin
    first = 0
    if WINDOW > 0:
        n_query = tl.load(cu_q + row + 1) - tl.load(cu_q + row)
        first = tl.maximum(tl.load(context_of + row) - n_query - WINDOW + 1, 0) // PAGE
    page = tl.load(table + row.to(tl.int64) * table_row + column, mask=seen & (column >= first), other=0)
    tl.store(pages + begin + column, page, mask=seen)
