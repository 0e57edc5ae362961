"""Index builders: from a step's page table to what each of aiter's kernels expects. Each is one launch, recordable.

All lengths are read on the device. Whatever a kernel may read past a row's end is unit 0, which is in page 0: finite.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton  # type: ignore[import-untyped]
from torch import Tensor

from srtkit_plugin_attention_aiter.index_kernels import drafts_kernel, list_kernel, mask_kernel, table_kernel

LIST_PAD = 256
"""Zeros after a list: `mha_batch_prefill_func` reads up to 128 entries past the end."""
TABLE_PAD = 64
"""Columns of zeros after a table: `unified_attention` reads entries for whole tiles, of up to 64 tokens."""
BLOCK = 256


@dataclass(frozen=True)
class KvRows:
    """Rows of a step whose keys are looked up.

    `cu_q` int32 [rows + 1], offsets of queries; `context` int32 [rows], keys with this step's own; `table` int32
    [rows, at least their pages], rows may stand apart; `page` tokens of a page.
    """

    cu_q: Tensor
    context: Tensor
    table: Tensor
    page: int

    def __len__(self) -> int:
        return len(self.context)

    def units(self, unit: int) -> int:
        """Units of `unit` tokens that the table has room for in a row."""
        return self.table.shape[1] * (self.page // unit)


def list_units(
    rows: KvRows,
    indptr: Tensor,
    indices: Tensor,
    last: Tensor,
    *,
    unit: int,
    stored: bool = False,
) -> None:
    """All rows' units in one list: writes indptr int32 [rows + 1], indices int32 or int64, last int32 [rows].

    `indices` has room for all units and LIST_PAD more; `last` gets the tokens in each row's last unit. `unit` divides
    the page. `stored`: only keys before this step's own.
    """
    blocks = triton.cdiv(max(rows.units(unit), LIST_PAD), BLOCK)
    list_kernel[(len(rows) + 1, blocks)](
        *(rows.cu_q, rows.context, rows.table, indptr, indices, last, len(rows), rows.table.stride(0)),
        UNIT=unit,
        PAGE=rows.page,
        STORED=stored,
        PAD=LIST_PAD,
        ROWS=triton.next_power_of_2(len(rows)),
        BLOCK=BLOCK,
    )


def tabulate(rows: KvRows, table: Tensor, lengths: Tensor, *, window: int = 0) -> None:
    """Each row's pages in a row of its own, zeros after them: writes table int32 [rows, pages + TABLE_PAD or more] in
    that width, lengths int64 [rows], the keys.

    With a window, pages wholly before every query's window are page 0: they may have been freed.
    """
    width = rows.units(rows.page) + TABLE_PAD
    assert table.shape[1] >= width, "no room for the columns after a table"
    table_kernel[(len(rows), triton.cdiv(width, BLOCK))](
        *(rows.cu_q, rows.context, rows.table, table, lengths),
        *(len(rows), width, rows.table.stride(0), table.stride(0)),
        PAGE=rows.page,
        WINDOW=window,
        BLOCK=BLOCK,
    )


def tabulate_drafts(rows: KvRows, bits: Tensor, table: Tensor, lengths: Tensor, *, window: int = 0) -> None:
    """Each draft as a row of one query: the slots that it sees, stored ones first and itself last, zeros after them.

    `bits` int32 [rows, q_len, words] as `TreeMask` has them, drafts after their ancestors. Writes table int32
    [rows * q_len, keys + TABLE_PAD], lengths int64 [rows * q_len]. With a window only the last ones: then `keys`, all
    that a draft may see, is that short.
    """
    count, q_len, words = bits.shape
    width = table.shape[1]
    assert width >= min(rows.units(1), window or rows.units(1)) + TABLE_PAD, "no room for the columns after a table"
    drafts_kernel[(count * q_len, triton.cdiv(width, BLOCK))](
        *(rows.context, rows.table, bits, table, lengths, width, rows.table.stride(0), table.stride(0)),
        PAGE=rows.page,
        WINDOW=window,
        Q_LEN=q_len,
        Q_PAD=triton.next_power_of_2(q_len),
        WORDS=words,
        BLOCK=BLOCK,
    )


def draft_masks(rows: KvRows, bits: Tensor, mask: Tensor, mask_indptr: Tensor) -> None:
    """What drafts see of each other, as `extend_attention_fwd` wants it: writes mask uint8, mask_indptr int64 [rows].

    Draft i of row r begins at mask_indptr[r] + i * keys of r; only the last q_len bytes, those of drafts, are written.
    """
    count, q_len, words = bits.shape
    mask_kernel[(count * q_len,)](
        *(rows.context, bits, mask, mask_indptr, count),
        Q_LEN=q_len,
        Q_PAD=triton.next_power_of_2(q_len),
        WORDS=words,
        ROWS=triton.next_power_of_2(count),
    )
