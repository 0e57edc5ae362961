"""Small Triton kernels around the library: the flat list of a step's pages, and masks of trees. They know no steps."""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


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


@triton.jit(do_not_specialize=["q_len"])
def mask_kernel(
    bits, positions, context_of, offsets, mask, q_len,
    WORDS: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, blocks of bytes): row r's mask goes to mask[offsets[r]:], of q_len x context bits, the first lowest.

    A draft sees what is stored before it and the drafts in its word; with a window, by positions.
    """
    row = tl.program_id(0)
    keys = tl.load(context_of + row)
    byte = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    element = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    query, key = element // keys, element % keys
    there = query < q_len
    stored = keys - q_len
    draft = tl.maximum(key - stored, 0)
    first = (row * q_len).to(tl.int64)
    word = tl.load(bits + (first + query) * WORDS + draft // 32, mask=there & (key >= stored), other=-1)
    see = there & (((word >> (draft % 32)) & 1) != 0)
    if WINDOW > 0:
        mine = tl.load(positions + first + query, mask=there, other=0)
        other = tl.load(positions + first + draft, mask=there & (key >= stored), other=0)
        see = see & (mine - tl.where(key >= stored, other, key) < WINDOW)
    packed = tl.sum(see.to(tl.int32) << tl.arange(0, 8)[None, :], 1)
    tl.store(mask + tl.load(offsets + row) + byte, packed.to(tl.uint8), mask=byte * 8 < q_len * keys)
