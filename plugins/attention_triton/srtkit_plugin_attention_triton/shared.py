"""Decode rows that share their leading pages: those are attended to for many rows at once, before the rest of each.

A recorded step launches the kernel whether or not rows share anything; where none do, it ends at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.attention import AttentionSpec, GroupView, LayerHandle
from srtkit.spec.facts import Limits
from srtkit.spec.platform import Platform
from srtkit_plugin_attention_triton.arguments import group_of, scale_of, sizes, steps, strides
from srtkit_plugin_attention_triton.kernels import prefix_kernel
from srtkit_plugin_attention_triton.prefixes import BLOCK_WORDS, PrefixTable
from srtkit_plugin_attention_triton.slots import planes_of, scales_of
from srtkit_plugin_attention_triton.tiles import Launch, Tile

FEWEST_ROWS = 4
"""Plans of fewer rows do without."""
FEWEST_MEMBERS = 4
"""Of a block: with more query heads on a KV head than leave room for them, nothing is gained."""
WORTH = 1024
"""Tokens that need not be read again, from which on a group pays."""


class SharedPrefixes:
    """What a backend needs for rows that share pages. Which do is a plan's: see `table`.

    Its buffers hold nothing between two calls, so that all plans share them: float32 [members x parts, heads, size] of
    what is shared, and the log-sums of that, base 2.
    """

    def __init__(
        self, spec: AttentionSpec, platform: Platform, limits: Limits, tile: Tile, processors: int, launch: Launch
    ) -> None:
        self._spec, self._platform, self.tile, self._processors = spec, platform, tile, processors
        self._launch = launch
        self._block = members_of(spec, tile)
        self._programs = max(1, tile.waves * processors * group_of(spec) // spec.q_heads)
        shape = (PrefixTable.room(limits, self._block, self._programs), spec.q_heads)
        self._out = platform.allocate("workspace", (*shape, spec.v_head_dim), torch.float32)
        self._lse = platform.allocate("workspace", shape, torch.float32)

    def table(self, limits: Limits) -> PrefixTable | None:
        """A plan's; None if it has too few rows."""
        if limits.max_rows < FEWEST_ROWS:
            return None
        return PrefixTable(self._platform, limits, self._block, self._programs)

    def attend(self, table: PrefixTable, layer: LayerHandle, view: GroupView, q: Tensor) -> tuple[Tensor, ...]:
        """Launch the kernel for what rows of one query share. Gives what those for the rest of each row join to it: the
        outputs, their log-sums, and of the table the header, `skip` and `member`.
        """
        spec, tile = self._spec, self.tile
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
        return self._out, self._lse, table.header, table.skip, table.member


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
