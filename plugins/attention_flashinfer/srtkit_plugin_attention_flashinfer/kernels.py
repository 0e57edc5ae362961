"""A small Triton kernel around the library: the flat list of a step's pages. Knows no steps."""

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
