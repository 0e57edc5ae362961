"""Decode rows that share their leading pages: those are attended to for many rows at once, and joined to the rest.

A recorded step launches both kernels whether or not rows share anything; where none do, they end at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.attention import AttentionSpec, GroupView, LayerHandle
from srtkit.spec.facts import Limits
from srtkit.spec.platform import Platform
from srtkit_plugin_attention_triton.arguments import padded, planes, scale_of, sizes, strides
from srtkit_plugin_attention_triton.kernels import join_kernel, prefix_kernel
from srtkit_plugin_attention_triton.prefixes import MAX_PARTS, PrefixTable
from srtkit_plugin_attention_triton.tiles import Tile

FEWEST_ROWS = 4
"""Plans of fewer rows do without."""
WORTH = 1024
"""Tokens that need not be read again, from which on a group pays."""
JOINING, JOIN_CHUNK = 8, 4
"""Joining programs a processor, and the parts that one has under way."""


class SharedPrefixes:
    """Which rows of a plan share pages, and room for what those give: float32 [rows x parts, heads, size], log-sums.

    `own_lse` float32 [rows, heads], base 2: the log-sums of what each row has by itself, from who computes it.
    """

    def __init__(self, spec: AttentionSpec, platform: Platform, limits: Limits, tile: Tile, processors: int) -> None:
        self._spec, self._tile, self._processors = spec, tile, processors
        programs = max(1, tile.waves * processors // spec.kv_heads)
        self.table = PrefixTable(platform, limits, tile.block_m * spec.kv_heads // spec.q_heads, programs)
        shape = (self.table.room, spec.q_heads)
        self._out = platform.allocate("workspace", (*shape, spec.v_head_dim), torch.float32)
        self._lse = platform.allocate("workspace", shape, torch.float32)
        self.own_lse = platform.allocate("workspace", (limits.max_rows, spec.q_heads), torch.float32)

    @staticmethod
    def wanted(spec: AttentionSpec, limits: Limits) -> bool:
        """Whether rows may share what is worth it. A window sees too little of a shared prefix."""
        return limits.max_rows >= FEWEST_ROWS and spec.causal and not spec.window

    def fill(self, view: GroupView, rows: int) -> None:
        """Look through the step's first `rows` rows, of one query each."""
        self.table.update(view.host_pages[:rows], view.page_tokens, -(-WORTH // view.page_tokens))

    def join(self, layer: LayerHandle, view: GroupView, q: Tensor, out: Tensor, lse: Tensor | None) -> None:
        """Complete out and lse of the rows in a group, which have their own part and `own_lse` already."""
        spec, table, tile = self._spec, self.table, self._tile
        prefix_kernel[(tile.waves * self._processors,)](
            *(q, *planes(layer), self._out, self._lse, table.blocks, table.rows, view.page_table),
            *(scale_of(spec), spec.soft_cap, view.page_table.stride(0), q.stride(0), q.stride(1), *strides(layer)),
            PAGE=view.page_tokens,
            BLOCK_M=tile.block_m,
            TILE=tile.tile,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **sizes(spec),
        )
        join_kernel[(JOINING * self._processors,)](
            *(out, lse, self.own_lse, self._out, self._lse, table.blocks, table.rows, table.skip),
            *(out.stride(0), out.stride(1)),
            HEADS=spec.q_heads,
            V_HEAD=spec.v_head_dim,
            V_PAD=padded(spec.v_head_dim),
            LSE=lse is not None,
            TILE=tile.tile,
            MAX_PARTS=MAX_PARTS,
            CHUNK=JOIN_CHUNK,
            num_warps=2,
        )
