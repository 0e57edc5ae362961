"""Index builders as Triton kernels, one launch each: which pages or slots a row's keys stand in. Know no aiter.

A *unit* is what a kernel takes for a page: UNIT tokens, a divisor of the pool's PAGE. Hidden units are unit 0.
"""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _lengths(cu_q, context_of, row, there):
    """Keys and queries of rows. A padding row is said to have one key, however many its queries: it gets one for each.

    A query that sees nothing would be NaN, and what is made of it is stored in page 0, which must stay finite.
    """
    n_query = tl.load(cu_q + row + 1, mask=there, other=0) - tl.load(cu_q + row, mask=there, other=0)
    return tl.maximum(tl.load(context_of + row, mask=there, other=0), n_query), n_query


@triton.jit
def _units(table_row, token, seen, UNIT: tl.constexpr, PAGE: tl.constexpr):
    """The units of tokens that begin one; unit 0 where not `seen`."""
    page = tl.load(table_row + token // PAGE, mask=seen, other=0)
    return tl.where(seen, page * (PAGE // UNIT) + token % PAGE // UNIT, 0)


@triton.jit(do_not_specialize=["rows", "table_row"])
def list_kernel(
    cu_q, context_of, table, indptr, indices, last, rows, table_row,
    UNIT: tl.constexpr, PAGE: tl.constexpr, STORED: tl.constexpr,
    PAD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows + 1, blocks of units): row r's units go to indices[indptr[r] : indptr[r + 1]], PAD zeros after all."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i = tl.arange(0, ROWS)
    before, their_queries = _lengths(cu_q, context_of, i, (i < row) & (i < rows))
    begin = tl.sum(((before - their_queries if STORED else before) + UNIT - 1) // UNIT)
    if row == rows:
        tl.store(indptr + row, begin)
        tl.store(indices + begin + column, tl.zeros([BLOCK], indices.dtype.element_ty), mask=column < PAD)
    else:
        keys, n_query = _lengths(cu_q, context_of, row, row < rows)
        n = keys - n_query if STORED else keys
        count = (n + UNIT - 1) // UNIT
        unit = _units(table + row.to(tl.int64) * table_row, column * UNIT, column < count, UNIT, PAGE)
        tl.store(indices + begin + column, unit.to(indices.dtype.element_ty), mask=column < count)
        tl.store(indptr + row, begin)
        tl.store(last + row, n - (count - 1) * UNIT)


@triton.jit(do_not_specialize=["rows", "width", "table_row", "out_row"])
def table_kernel(
    cu_q, context_of, table, out, lengths, rows, width, table_row, out_row,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, blocks of columns): out[r, :width] holds row r's pages and zeros, lengths[r] its keys.

    With a window, pages wholly before every query's are 0.
    """
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keys, n_query = _lengths(cu_q, context_of, row, row < rows)
    first = tl.maximum(keys - n_query + 1 - WINDOW, 0) if WINDOW > 0 else 0
    token = column * PAGE
    seen = (token < keys) & (token + PAGE > first)
    page = tl.load(table + row.to(tl.int64) * table_row + column, mask=seen, other=0)
    tl.store(out + row.to(tl.int64) * out_row + column, page, mask=column < width)
    tl.store(lengths + row, keys.to(tl.int64))


@triton.jit
def _sees(bits, draft, j, Q_LEN: tl.constexpr, WORDS: tl.constexpr):
    """1 for the drafts `j` of its row that a draft sees, else 0."""
    word = tl.load(bits + draft.to(tl.int64) * WORDS + j // 32, mask=j < Q_LEN, other=0)
    return (word >> (j % 32)) & 1


@triton.jit(do_not_specialize=["width", "table_row", "out_row"])
def drafts_kernel(
    context_of, table, bits, out, lengths, width, table_row, out_row,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, Q_LEN: tl.constexpr, Q_PAD: tl.constexpr, WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (drafts, blocks of columns): out[d, :width] holds the slots that draft d sees, then zeros; lengths[d] is
    their number.

    Drafts come after those that they see, so the last WINDOW slots are the window.
    """
    draft = tl.program_id(0)
    row = draft // Q_LEN
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    stored = tl.maximum(tl.load(context_of + row) - Q_LEN, 0)
    j = tl.arange(0, Q_PAD)
    sees = _sees(bits, draft, j, Q_LEN, WORDS)
    n = stored + tl.sum(sees)
    skipped = tl.maximum(n - WINDOW, 0) if WINDOW > 0 else 0
    place = column + skipped
    earlier = tl.sum(tl.where(j[None, :] < j[:, None], sees[None, :], 0), 1)  # that it sees too, of each
    mine = tl.sum(tl.where((stored + earlier[None, :] == place[:, None]) & (sees[None, :] > 0), j[None, :], 0), 1)
    token = tl.where(place < stored, place, stored + mine)
    slot = _units(table + row.to(tl.int64) * table_row, token, place < n, 1, PAGE)
    tl.store(out + draft.to(tl.int64) * out_row + column, slot, mask=column < width)
    tl.store(lengths + draft, (n - skipped).to(tl.int64))


@triton.jit(do_not_specialize=["rows"])
def mask_kernel(
    context_of, bits, mask, mask_indptr, rows,
    Q_LEN: tl.constexpr, Q_PAD: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Grid (drafts): which drafts of its row a draft sees, as bytes in masks [drafts, keys] of all rows in turn."""
    draft = tl.program_id(0)
    row, own = draft // Q_LEN, draft % Q_LEN
    i = tl.arange(0, ROWS)
    before = tl.where(i < row, tl.maximum(tl.load(context_of + i, mask=i < row, other=0), Q_LEN), 0)
    begin = tl.sum(before.to(tl.int64)) * Q_LEN
    keys = tl.maximum(tl.load(context_of + row), Q_LEN)
    j = tl.arange(0, Q_PAD)
    sees = _sees(bits, draft, j, Q_LEN, WORDS)
    tl.store(mask + begin + own.to(tl.int64) * keys + keys - Q_LEN + j, sees.to(tl.uint8), mask=j < Q_LEN)
    if own == 0:
        tl.store(mask_indptr + row, begin)
