"""Decode rows that share their leading pages: a group's rows attend to those together, and each row to its own.

Which do is found by `attention:triton`'s search among page ids. Knows what the operator is given, not how it is called.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from srtkit.spec.attention import GroupView
from srtkit.spec.facts import Limits
from srtkit.spec.platform import Platform
from srtkit_plugin_attention_fa3.kernels import gather_kernel, join_kernel, shared_kernel
from srtkit_plugin_attention_triton.prefixes import BLOCK_WORDS, MAX_GROUPS, PrefixTable

FEWEST_ROWS = 4
"""Plans of fewer rows do without."""
WORTH = 1024
"""Tokens that need not be read again, from which on a group pays."""
BLOCK = 256
"""Columns of a page table that one program writes."""


class SharedPrefixes:
    """Of one plan, all int32 at fixed addresses: what groups share and what rows have alone.

    `cu_q` [groups + 1] counts members, `length` [groups] shared tokens, `table` [groups, pages]; `own_length` [rows]
    and `own_table` [rows, pages] are of what stands behind. A row for padding may stand beside those of the limits.
    """

    def __init__(self, platform: Platform, limits: Limits) -> None:
        rows, pages, allocate = limits.max_rows + 1, limits.max_pages, platform.allocate
        self._found = PrefixTable(platform, limits, rows, 1)  # a block has room for all rows, so a group is one
        self.cu_q = allocate("workspace", (MAX_GROUPS + 1,), torch.int32)
        self.length = allocate("workspace", (MAX_GROUPS,), torch.int32)
        self.table = allocate("workspace", (MAX_GROUPS, pages), torch.int32)
        self.own_length = allocate("workspace", (rows,), torch.int32)
        self.own_table = allocate("workspace", (rows, pages), torch.int32)

    def look(self, view: GroupView, rows: int) -> None:
        """Find which of a step's first `rows` rows share pages, on the host."""
        self._found.update(view.host_pages[:rows], view.page_tokens, -(-WORTH // view.page_tokens))

    def lay_out(self, view: GroupView, context: Tensor) -> None:
        """Write lengths and tables of both kinds on the device, from the lengths `context` [rows] there."""
        found, width = self._found, view.page_table.shape[1]
        shared_kernel[(MAX_GROUPS + len(context), triton.cdiv(width, BLOCK))](
            *(found.header, found.blocks, found.skip, view.page_table, context),
            *(self.cu_q, self.length, self.table, self.own_length, self.own_table),
            *(view.page_table.stride(0), self.table.stride(0)),
            GROUPS=MAX_GROUPS,
            WORDS=BLOCK_WORDS,
            PAGE=view.page_tokens,
            WIDTH=width,
            BLOCK=BLOCK,
        )

    def gathered(self, q: Tensor) -> Tensor:
        """Queries [rows, heads, size] of members, beside each other; rows without a group are missing at the end."""
        rows, heads, size = q.shape
        out = q.new_empty(q.shape)
        gather_kernel[(rows, heads)](
            *(q, self._found.header, self._found.rows, out, q.stride(0), q.stride(1)),
            HEADS=heads,
            SIZE=size,
            PAD=triton.next_power_of_2(size),
        )
        return out

    def join(self, out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
        """Members' part of what their group shares joins their own, by log-sums [rows, heads]. Mutates out, lse."""
        rows, heads, size = out.shape
        join_kernel[(rows, heads)](
            *(out, lse, other, other_lse, self._found.header, self._found.rows),
            *(out.stride(0), out.stride(1), *lse.stride(), *other_lse.stride()),
            HEADS=heads,
            SIZE=size,
            PAD=triton.next_power_of_2(size),
        )
