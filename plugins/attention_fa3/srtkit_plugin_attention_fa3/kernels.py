"""A small Triton kernel around the operator: page tables that hide freed pages. Knows no steps."""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


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
