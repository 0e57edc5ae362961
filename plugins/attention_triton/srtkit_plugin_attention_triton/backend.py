"""The backend of one layer group: refuses what it does not cover, sizes a plan, launches the kernels.

The host decides grids from numbers of rows and tokens only; lengths, pages and slots are read on the device.
So a recorded step stays right under every later fill, and nothing has to be computed anew when lengths grow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionParts,
    AttentionPlan,
    AttentionSpec,
    Batch,
    GroupView,
    LayerHandle,
    MlaDims,
    PlanAdvance,
    RotatedStore,
    Rotation,
    Rows,
    TreeMask,
)
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit.spec.facts import Limits
from srtkit.spec.step_plan import Ints
from srtkit_plugin_attention_triton import DTYPES, FP8, HEAD_DIMS, MAX_Q_LEN, MAX_RANK, PART, declared
from srtkit_plugin_attention_triton.arguments import group_of, scale_of, sizes, steps, strides
from srtkit_plugin_attention_triton.kernels import attend_kernel, merge_kernel
from srtkit_plugin_attention_triton.prefixes import PrefixTable
from srtkit_plugin_attention_triton.refusals import why_not
from srtkit_plugin_attention_triton.shared import SharedPrefixes, look_through, wanted
from srtkit_plugin_attention_triton.slots import PlaneMover, planes_of, scales_of, store, store_rotated
from srtkit_plugin_attention_triton.tiles import Kind, Launch, Tile, fitting, launch_of, segments, tile_for

MERGE_CHUNK = 16
"""Parts that a merging program has under way at once."""


class TritonPlan(AttentionPlan):
    """Which rows share pages, and the step that is filled in."""

    def __init__(self, prefixes: PrefixTable | None) -> None:
        self.prefixes = prefixes
        self.batch: Batch | None = None
        self.view: GroupView | None = None

    @property
    def step(self) -> tuple[Batch, GroupView]:
        """What was filled in last."""
        assert self.batch is not None and self.view is not None, "attend or store before fill"
        return self.batch, self.view

    def close(self) -> None:
        """Free the buffers."""
        self.prefixes = None
        self.batch = self.view = None


@dataclass(frozen=True)
class _Call:
    """Tensors of one `attend`, and the rows that a launch covers: `q_len` 0 for rows of any length.

    `mixed`: the rows are all those of the step, and the launch is for those of one query, or for the others.
    """

    plan: TritonPlan
    layer: LayerHandle
    q: Tensor
    out: Tensor
    lse: Tensor | None
    first_row: int
    rows: int
    tokens: int
    q_len: int
    mixed: bool = False
    tree: TreeMask | None = None


class TritonAttention(AttentionBackend):
    """Paged attention of one layer group in Triton."""

    def __init__(self, build: AttentionBuild, *, interpreted: bool) -> None:
        self._spec = spec = build.group.spec
        self._platform = build.platform
        self._keys = _longest(spec, build.limits)
        _refuse(build)
        device = build.platform.device(build.device_index)
        if device.type == "cpu" and not interpreted:
            raise DeviceAbsent(PART, "runs on a GPU; on a CPU in Triton's interpreter only", "name another backend")
        self._architecture, self._processors = _of_device(device)
        self._early = launch_of(self._architecture)
        self._group = group_of(spec)
        self._key_bytes = max(spec.head_dim, spec.v_head_dim) * (4 if spec.dtype == "float32" else 2)
        # Parts last for one call, and calls follow each other in one stream: all plans share their room.
        rows = range(1, build.limits.max_rows + 1)
        shape = (max(n * self._segments(n, 1, self._leading(n, 1)) for n in rows), spec.q_heads)
        self._part_out = self._platform.allocate("workspace", (*shape, spec.v_head_dim), torch.float32)
        self._part_lse = self._platform.allocate("workspace", shape, torch.float32)
        tile = self._tile("prefix", build.limits.max_rows)
        self._shared: SharedPrefixes | None = None
        if wanted(spec, build.limits, tile):
            self._shared = SharedPrefixes(spec, self._platform, build.limits, tile, self._processors, self._early)
        rotated = None if spec.mla else RotatingStore(self._early)
        self._parts = AttentionParts(advance=NothingToAdvance(), mover=PlaneMover(), rotated=rotated)

    def new_plan(self, limits: Limits) -> TritonPlan:
        """A plan that sees which rows share pages. Raises `OutOfMemory`."""
        return TritonPlan(self._shared.table(limits) if self._shared else None)

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Note the step's tensors. Raises `Unsupported` for features but a tree mask, and for longer leading rows."""
        assert isinstance(plan, TritonPlan)
        unknown = batch.features - {"tree_mask"}
        if unknown:
            raise Unsupported(PART, f"does not understand the feature {', '.join(sorted(unknown))}")
        if batch.leading and batch.q_len > MAX_Q_LEN:
            raise Unsupported(PART, f"has at most {MAX_Q_LEN} queries in a leading row, not {batch.q_len}")
        plan.batch, plan.view = batch, view
        if plan.prefixes is not None and (not batch.leading or batch.q_len == 1):
            look_through(plan.prefixes, view, batch.leading or _decoding(batch.host_q))

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Copy k and v, for MLA latent and rope part, to the step's slots, in one launch."""
        assert isinstance(plan, TritonPlan)
        _, view = plan.step
        store(layer, view.slot_mapping, (k, v), self._early)

    def attend(
        self,
        plan: AttentionPlan,
        layer: LayerHandle,
        q: Tensor,
        out: Tensor,
        *,
        rows: Rows = Rows.ALL,
        fresh: tuple[Tensor, Tensor] | None = None,
        lse: Tensor | None = None,
    ) -> None:
        """As the contract says. Reads what is stored, never `fresh`.

        A step without leading rows may be a recorded one of rows of any length, whatever they are in the next replay:
        one launch is for its rows of one query, and one for the others.
        """
        assert isinstance(plan, TritonPlan)
        batch, _ = plan.step
        if q.stride(2) != 1:
            q = q.contiguous()
        step = (plan, layer, q, out, lse)
        leading = batch.leading * batch.q_len
        if rows is not Rows.LEADING and not leading:
            self._launch(_Call(*step, 0, batch.rows, batch.rows, 1, mixed=True))
            self._launch(_Call(*step, 0, batch.rows, batch.tokens, 0, mixed=True))
            return
        if rows is not Rows.REST and leading:
            self._launch(_Call(*step, 0, batch.leading, leading, batch.q_len, tree=batch.tree))
        if rows is not Rows.LEADING and batch.tokens > leading:
            self._launch(_Call(*step, batch.leading, batch.rows - batch.leading, batch.tokens - leading, 0))

    def parts(self) -> AttentionParts:
        """Advance, the slot mover, and of layers that are not latent the rotating store."""
        return self._parts

    def close(self) -> None:
        """Free what plans share."""
        self._shared = None
        self._part_out = self._part_lse = torch.empty(0)

    def _tile(self, kind: Kind, queries: int) -> Tile:
        fp8 = "fp8_kv" in self._spec.features
        return tile_for(self._architecture, kind, self._key_bytes, self._group, queries, fp8=fp8)

    def _leading(self, rows: int, q_len: int) -> Tile:
        few = rows * self._spec.q_heads // self._group <= self._processors
        return self._tile("few" if few else "decode", q_len)

    def _segments(self, rows: int, q_len: int, tile: Tile) -> int:
        blocks = rows * -(-q_len // (tile.block_m // self._group)) * (self._spec.q_heads // self._group)
        return segments(blocks, tile, self._keys, self._processors)

    def _launch(self, call: _Call) -> None:
        spec = self._spec
        batch, view = call.plan.step
        tile = self._leading(call.rows, call.q_len) if call.q_len else self._tile("extend", call.tokens)
        block_q = tile.block_m // self._group
        if call.q_len:
            blocks = call.rows * -(-call.q_len // block_q)
            cut = fitting(self._segments(call.rows, call.q_len, tile), call.tokens, len(self._part_out))
        else:
            blocks, cut = call.tokens // block_q + call.rows, 1
        assert (call.layer.sinks is not None) == spec.sinks, "the layer came without its sinks"
        prefixes, shared = call.plan.prefixes if call.q_len == 1 else None, self._shared
        bits = None if call.tree is None else call.tree.bits.contiguous()
        q, out, parts = call.q, call.out, (self._part_out, self._part_lse)
        prefix: tuple[Tensor | None, ...] = (None,) * 5
        limit: dict[str, int] = {}
        if prefixes and shared:
            prefix = shared.attend(prefixes, call.layer, view, q)
            if tile.registers and cut == 1 and spec.dtype != "float32":
                limit = {"maxnreg": tile.registers}
        step = {
            "WINDOW": spec.window,
            "CAUSAL": spec.causal,
            "LSE": call.lse is not None,
            "TREE_WORDS": 0 if bits is None else bits.shape[2],
            "BLOCK_Q": block_q,
            "TILE": tile.tile,
            "SEGMENTS": cut,
            "MIXED": call.mixed,
            "PREFIX": shared.tile.tile if prefixes and shared else 0,
        }
        constants = sizes(spec)
        attend_kernel[(blocks * (spec.q_heads // self._group), cut)](
            *(q, *planes_of(call.layer), out, call.lse, *parts, *prefix, call.layer.sinks),
            *(*scales_of(call.layer), bits, batch.positions, batch.cu_q, batch.context, view.page_table),
            *(scale_of(spec), spec.soft_cap, call.first_row, call.rows, call.q_len, view.page_table.stride(0)),
            *(q.stride(0), q.stride(1), out.stride(0), out.stride(1), *strides(call.layer)),
            PAGE=view.page_tokens,
            SINKS=spec.sinks,
            BLOCK_M=tile.block_m,
            UNIFORM=call.q_len > 0,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **limit,
            **constants,
            **steps(call.layer),
            **step,
            **self._early,
        )
        if cut > 1:
            merge_kernel[(call.tokens, spec.q_heads)](
                *(out, call.lse, *parts, *prefix, batch.cu_q, batch.context),
                *(call.first_row, call.q_len, out.stride(0), out.stride(1)),
                CHUNK=min(MERGE_CHUNK, cut),
                num_warps=4,
                **{name: constants[name] for name in ("HEADS", "V_HEAD", "V_PAD")},
                **step,
                **self._early,
            )


class RotatingStore(RotatedStore):
    """Rotation and store in one launch."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def store_rotated(
        self, plan: AttentionPlan, layer: LayerHandle, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation
    ) -> None:
        """As the contract says; k stays as it is."""
        assert isinstance(plan, TritonPlan)
        _, view = plan.step
        store_rotated(layer, view.slot_mapping, (q, k, v), rotation, self._launch)


class NothingToAdvance(PlanAdvance):
    """The kernels read lengths, pages and slots when they run."""

    def advance(self, plan: AttentionPlan) -> None:
        """Nothing is left to compute."""


def _decoding(n_query: Ints) -> int:
    """How many rows of one query there are before the first other one."""
    others = np.flatnonzero(n_query != 1)
    return int(others[0]) if len(others) else len(n_query)


def _longest(spec: AttentionSpec, limits: Limits) -> int:
    """Keys that a query may see at most."""
    return min(limits.max_context, spec.window + MAX_Q_LEN) if spec.window else limits.max_context


def _of_device(device: torch.device) -> tuple[str, int]:
    """Architecture as the table names it, and multiprocessors."""
    if device.type == "cpu":
        return "interpreter", 4
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return str(properties.gcnArchName).partition(":")[0], properties.multi_processor_count
    return f"sm{properties.major}{properties.minor}", properties.multi_processor_count


def _refuse(build: AttentionBuild) -> None:
    """Raise `Unsupported` unless the spec and the layout are among those declared."""
    spec = build.group.spec
    kind = build.platform.device(build.device_index).type
    reason = why_not(PART, build, declared(DTYPES.get(kind, frozenset()), FP8))
    if spec.mla is not None:
        reason = reason or _latent(spec, spec.mla)
    elif spec.head_dim not in HEAD_DIMS or spec.v_head_dim not in HEAD_DIMS:
        reason = reason or f"has no kernel for keys of size {spec.head_dim} with values of size {spec.v_head_dim}"
    if reason:
        raise Unsupported(PART, reason, "name another backend under [attention] for these layers")


def _latent(spec: AttentionSpec, mla: MlaDims) -> str:
    """Why a latent layer is refused."""
    if (spec.kv_heads, spec.head_dim, spec.v_head_dim) != (1, mla.rank + mla.rope, mla.rank):
        return "takes MLA in absorbed form: one KV head, head size rank + rope, value size rank"
    if mla.rank % 8 or mla.rope % 8 or mla.rank > MAX_RANK:
        return f"has no kernel for latents of size {mla.rank} with rope parts of size {mla.rope}"
    return ""
