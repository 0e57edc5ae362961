"""Decode rows that share their leading pages: those are attended to for many rows at once, and joined to the rest.

A recorded step launches both kernels whether or not rows share anything; where none do, they end at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.attention import AttentionSpec, GroupView, LayerHandle
from srtkit.spec.facts import Limits
from srtkit.spec.platform import Platform
from srtkit_plugin_attention_triton.arguments import group_of, padded, scale_of, sizes, steps, strides
from srtkit_plugin_attention_triton.kernels import join_kernel, prefix_kernel
from srtkit_plugin_attention_triton.prefixes import BLOCK_WORDS, MAX_PARTS, PrefixTable
from srtkit_plugin_attention_triton.slots import planes_of, scales_of
from srtkit_plugin_attention_triton.tiles import Launch, Tile

FEWEST_ROWS = 4
"""Plans of fewer rows do without."""
FEWEST_MEMBERS = 4
"""Of a block: with more query heads on a KV head than leave room for them, nothing is gained."""
WORTH = 1024
"""Tokens that need not be read again, from which on a group pays."""
JOINING, JOIN_CHUNK = 8, 4
"""Joining programs a processor, and the parts that one has under way."""


class SharedPrefixes:
    """What a backend needs for rows that share pages. Which do is a plan's: see `table`.

    Its buffers hold nothing between two calls, so that all plans share them: float32 [members x parts, heads, size] of
    what is shared, the log-sums of that, and `own_lse` [rows, heads], base 2, of what each row has by itself.
    """

    def __init__(
        self, spec: AttentionSpec, platform: Platform, limits: Limits, tile: Tile, processors: int, launch: Launch
    ) -> None:
        self._spec, self._platform, self._tile, self._processors = spec, platform, tile, processors
        self._launch = launch
        self._block = members_of(spec, tile)
        self._programs = max(1, tile.waves * processors * group_of(spec) // spec.q_heads)
        shape = (PrefixTable.room(limits, self._block, self._programs), spec.q_heads)
        self._out = platform.allocate("workspace", (*shape, spec.v_head_dim), torch.float32)
        self._lse = platform.allocate("workspace", shape, torch.float32)
        rows = limits.max_rows + 1  # one for padding stands beside those of a recorded step
        self.own_lse = platform.allocate("workspace", (rows, spec.q_heads), torch.float32)

    def table(self, limits: Limits) -> PrefixTable | None:
        """A plan's; None if it has too few rows."""
        if limits.max_rows < FEWEST_ROWS:
            return None
        return PrefixTable(self._platform, limits, self._block, self._programs)

    def join(
        self, table: PrefixTable, layer: LayerHandle, view: GroupView, q: Tensor, out: Tensor, lse: Tensor | None
    ) -> None:
        """Complete out and lse of the rows in a group, which have their own part and `own_lse` already."""
        spec, tile = self._spec, self._tile
        prefix_kernel[(tile.waves * self._processors,)](
            *(q, *planes_of(layer), self._out, self._lse, *scales_of(layer)),
            *(table.header, table.blocks, table.rows, view.page_table),
            *(scale_of(spec), spec.soft_cap, view.page_table.stride(0), q.stride(0), q.stride(1), *strides(layer)),
            PAGE=view.page_tokens,
            BLOCK_M=tile.block_m,
            TILE=tile.tile,
            BLOCK_WORDS=BLOCK_WORDS,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **sizes(spec),
            **steps(layer),
            **self._launch,
        )
        join_kernel[(JOINING * self._processors,)](
            *(out, lse, self.own_lse, self._out, self._lse, table.header, table.rows, table.skip),
            *(out.stride(0), out.stride(1)),
            HEADS=spec.q_heads,
            V_HEAD=spec.v_head_dim,
            V_PAD=padded(spec.v_head_dim),
            LSE=lse is not None,
            TILE=tile.tile,
            MAX_PARTS=MAX_PARTS,
            CHUNK=JOIN_CHUNK,
            num_warps=2,
            **self._launch,
        )


def members_of(spec: AttentionSpec, tile: Tile) -> int:
    """Rows that one block of query vectors has room for."""
    return tile.block_m // group_of(spec)


def wanted(spec: AttentionSpec, limits: Limits, tile: Tile) -> bool:
    """Whether rows may share what is worth it. A window sees too little of a shared prefix."""
    enough = limits.max_rows >= FEWEST_ROWS and members_of(spec, tile) >= FEWEST_MEMBERS
    return enough and spec.causal and not spec.window


def look_through(table: PrefixTable, view: GroupView, rows: int) -> None:
    """Find what a step's first `rows` rows share, of one query each; all others share nothing."""
    table.update(view.host_pages[:rows], view.page_tokens, -(-WORTH // view.page_tokens))
