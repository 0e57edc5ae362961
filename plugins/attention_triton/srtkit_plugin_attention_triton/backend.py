"""The backend of one layer group: refuses what it does not cover, sizes a plan, launches the kernels.

The host decides grids from numbers of rows and tokens only; lengths, pages and slots are read on the device.
So a recorded step stays right under every later fill, and nothing has to be computed anew when lengths grow.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
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
    PlanAdvance,
    Rows,
    SlotMover,
    check_spec,
)
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit_plugin_attention_triton import DTYPES, MAX_Q_LEN, PAGE_SIZES, PART, capabilities
from srtkit_plugin_attention_triton.arguments import planes, scale_of, sizes, strides
from srtkit_plugin_attention_triton.kernels import attend_kernel, merge_kernel, move_kernel, store_kernel
from srtkit_plugin_attention_triton.prefixes import PrefixTable
from srtkit_plugin_attention_triton.shared import SharedPrefixes, look_through, wanted
from srtkit_plugin_attention_triton.tiles import Kind, Tile, fitting, segments, tile_for

MERGE_CHUNK = 16
"""Parts that a merging program has under way at once."""


class TritonPlan(AttentionPlan):
    """Room for the parts of rows that are cut into segments, which rows share pages, and the step that is filled in."""

    def __init__(self, part_out: Tensor, part_lse: Tensor, prefixes: PrefixTable | None) -> None:
        self.part_out = part_out
        self.part_lse = part_lse
        self.prefixes = prefixes
        self.batch: Batch | None = None
        self.view: GroupView | None = None

    @property
    def step(self) -> tuple[Batch, GroupView]:
        """What was filled in last."""
        assert self.batch is not None and self.view is not None, "attend or store before fill"
        return self.batch, self.view

    def close(self) -> None:
        """Free the room."""
        self.part_out = self.part_lse = torch.empty(0)
        self.prefixes = None
        self.batch = self.view = None


@dataclass(frozen=True)
class _Call:
    """Tensors of one `attend`, and the rows that a launch covers: `q_len` 0 for rows of any length."""

    plan: TritonPlan
    layer: LayerHandle
    q: Tensor
    out: Tensor
    lse: Tensor | None
    first_row: int
    rows: int
    tokens: int
    q_len: int


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
        self._group = spec.q_heads // spec.kv_heads
        self._key_bytes = max(spec.head_dim, spec.v_head_dim) * (4 if spec.dtype == "float32" else 2)
        tile = self._tile("prefix", build.limits.max_rows)
        self._shared: SharedPrefixes | None = None
        if wanted(spec, build.limits, tile):
            self._shared = SharedPrefixes(spec, self._platform, build.limits, tile, self._processors)
        self._parts = AttentionParts(advance=NothingToAdvance(), mover=TritonMover())

    def new_plan(self, limits: Limits) -> TritonPlan:
        """Room for the parts of decode rows, whatever their number. Raises `OutOfMemory`."""
        spec = self._spec
        most = max(rows * self._segments(rows, 1, self._leading(rows, 1)) for rows in range(1, limits.max_rows + 1))
        shape = (most, spec.q_heads)
        allocate = self._platform.allocate
        return TritonPlan(
            allocate("workspace", (*shape, spec.v_head_dim), torch.float32),
            allocate("workspace", shape, torch.float32),
            self._shared.table(limits) if self._shared else None,
        )

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Note the step's tensors. Raises `Unsupported` for any batch feature, and for longer leading queries."""
        assert isinstance(plan, TritonPlan)
        if batch.features:
            raise Unsupported(PART, f"does not understand the feature {', '.join(sorted(batch.features))}")
        if batch.leading and batch.q_len > MAX_Q_LEN:
            raise Unsupported(PART, f"has at most {MAX_Q_LEN} queries in a leading row, not {batch.q_len}")
        plan.batch, plan.view = batch, view
        if plan.prefixes is not None and batch.leading and batch.q_len == 1:
            look_through(plan.prefixes, view, batch.leading)

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Copy k and v to the step's slots."""
        assert isinstance(plan, TritonPlan)
        _, view = plan.step
        k, v = _dense_token(k), _dense_token(v)
        k_plane, v_plane = layer.planes["k"], layer.planes["v"]
        widths = k.shape[1] * k.shape[2], v.shape[1] * v.shape[2]
        if k.shape[0] == 0:
            return
        store_kernel[(k.shape[0],)](
            *(k, v, k_plane, v_plane, view.slot_mapping),
            *(k.stride(0), v.stride(0), k_plane.stride(0), v_plane.stride(0)),
            PAGE=view.page_tokens,
            K_WIDTH=widths[0],
            V_WIDTH=widths[1],
            K_PAD=triton.next_power_of_2(widths[0]),
            V_PAD=triton.next_power_of_2(widths[1]),
        )

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
        """As the contract says. Reads what is stored, never `fresh`."""
        assert isinstance(plan, TritonPlan)
        batch, _ = plan.step
        if q.stride(2) != 1:
            q = q.contiguous()
        leading = batch.leading * batch.q_len
        if rows is not Rows.REST and leading:
            self._launch(_Call(plan, layer, q, out, lse, 0, batch.leading, leading, batch.q_len))
        if rows is not Rows.LEADING and batch.tokens > leading:
            others = batch.rows - batch.leading
            self._launch(_Call(plan, layer, q, out, lse, batch.leading, others, batch.tokens - leading, 0))

    def parts(self) -> AttentionParts:
        """Advance and the slot mover."""
        return self._parts

    def close(self) -> None:
        """Free what plans share."""
        self._shared = None

    def _tile(self, kind: Kind, queries: int) -> Tile:
        return tile_for(self._architecture, kind, self._key_bytes, self._group, queries)

    def _leading(self, rows: int, q_len: int) -> Tile:
        few = rows * self._spec.kv_heads <= self._processors
        return self._tile("few" if few else "decode", q_len)

    def _segments(self, rows: int, q_len: int, tile: Tile) -> int:
        blocks = rows * -(-q_len // (tile.block_m // self._group)) * self._spec.kv_heads
        return segments(blocks, tile, self._keys, self._processors)

    def _launch(self, call: _Call) -> None:
        spec = self._spec
        batch, view = call.plan.step
        tile = self._leading(call.rows, call.q_len) if call.q_len else self._tile("extend", call.tokens)
        block_q = tile.block_m // self._group
        if call.q_len:
            blocks = call.rows * -(-call.q_len // block_q)
            cut = fitting(self._segments(call.rows, call.q_len, tile), call.tokens, len(call.plan.part_out))
        else:
            blocks, cut = call.tokens // block_q + call.rows, 1
        assert (call.layer.sinks is not None) == spec.sinks, "the layer came without its sinks"
        prefixes, shared = call.plan.prefixes if call.q_len == 1 else None, self._shared
        own_lse, skip = (shared.own_lse, prefixes.skip) if prefixes and shared else (None, None)
        q, out, parts = call.q, call.out, (call.plan.part_out, call.plan.part_lse)
        step = {
            "WINDOW": spec.window,
            "CAUSAL": spec.causal,
            "LSE": call.lse is not None,
            "BLOCK_Q": block_q,
            "TILE": tile.tile,
            "SEGMENTS": cut,
            "PREFIX": skip is not None,
        }
        constants = sizes(spec)
        attend_kernel[(blocks, spec.kv_heads, cut)](
            *(q, *planes(call.layer), out, call.lse, *parts, own_lse, skip, call.layer.sinks),
            *(batch.cu_q, batch.context, view.page_table, scale_of(spec), spec.soft_cap),
            *(call.first_row, call.rows, call.q_len, view.page_table.stride(0)),
            *(q.stride(0), q.stride(1), out.stride(0), out.stride(1), *strides(call.layer)),
            PAGE=view.page_tokens,
            SINKS=spec.sinks,
            BLOCK_M=tile.block_m,
            UNIFORM=call.q_len > 0,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **constants,
            **step,
        )
        if cut > 1:
            merge_kernel[(call.tokens, spec.q_heads)](
                *(out, call.lse, *parts, own_lse, skip, batch.cu_q, batch.context),
                *(call.first_row, call.q_len, out.stride(0), out.stride(1)),
                CHUNK=min(MERGE_CHUNK, cut),
                num_warps=4,
                **{name: constants[name] for name in ("HEADS", "V_HEAD", "V_PAD")},
                **step,
            )
        if prefixes and shared:
            shared.join(prefixes, call.layer, view, q, out, call.lse)


class NothingToAdvance(PlanAdvance):
    """The kernels read lengths, pages and slots when they run."""

    def advance(self, plan: AttentionPlan) -> None:
        """Nothing is left to compute."""


class TritonMover(SlotMover):
    """Moves stored tokens."""

    def move_slots(self, layer: LayerHandle, source: Tensor, target: Tensor) -> None:
        """Copy the entries at int32 `source` [n] to `target` [n], both planes."""
        if len(source) == 0:
            return
        for plane in layer.planes.values():
            width = plane.shape[2] * plane.shape[3]
            move_kernel[(len(source),)](
                *(plane, source, target, plane.stride(0)),
                PAGE=plane.shape[1],
                WIDTH=width,
                PAD=triton.next_power_of_2(width),
            )


def _longest(spec: AttentionSpec, limits: Limits) -> int:
    """Keys that a query may see at most."""
    return min(limits.max_context, spec.window + MAX_Q_LEN) if spec.window else limits.max_context


def _dense_token(x: Tensor) -> Tensor:
    """x [T, heads, size] with dense tokens; they may be strided among each other."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


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
    spec, layout = build.group.spec, build.layout
    kind = build.platform.device(build.device_index).type
    anywhere = DeviceFacts(kind, "any", "any", dtypes=DTYPES.get(kind, frozenset()))
    reason = check_spec(PART, spec, capabilities(anywhere))
    if spec.v_head_dim not in capabilities(anywhere).head_dims:
        reason = reason or f"has no kernel for values of size {spec.v_head_dim}"
    if spec.kv_dtype != spec.dtype:
        reason = reason or f"keeps KV in the model's {spec.dtype}, not in {spec.kv_dtype}"
    if spec.window and not spec.causal:
        reason = reason or "has no meaning for a window without a causal mask"
    if layout.page_tokens not in PAGE_SIZES or tuple(plane.name for plane in layout.planes) != ("k", "v"):
        reason = reason or f"does not read the layout {layout.name} with pages of {layout.page_tokens}"
    if reason:
        raise Unsupported(PART, reason, "name another backend under [attention] for these layers")
