"""The backend of one layer group: what is fixed goes into C structures at build, a step's work at `fill`.

`store` and `attend` are one call each. Knows the contract and library.py; cut.py decides who computes what.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionParts,
    AttentionPlan,
    Batch,
    GroupView,
    LayerHandle,
    Rows,
    check_spec,
)
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit_plugin_cpu_native import library
from srtkit_plugin_cpu_native.attention import PART, Options, capabilities
from srtkit_plugin_cpu_native.cut import Shape, StepCut, Work

QUERIES = 96
"""Query vectors of a work item (MAX_QUERIES in chunk.h): enough to pay for packing its keys."""
ROWS = {Rows.ALL: 0, Rows.LEADING: 1, Rows.REST: 2}


class NativePlan(AttentionPlan):
    """The workspace, and the step that `fill` put in: its C structure and the arrays that it points to."""

    def __init__(self, partials: Tensor, shape: Shape) -> None:
        self.partials = partials
        self.shape = shape
        self.step = library.Step()
        self.address = ctypes.addressof(self.step)
        self.work: Work | None = None
        self.view: GroupView | None = None

    def close(self) -> None:
        """Free the workspace."""
        self.partials = torch.empty(0)
        self.work = self.view = None


@dataclass(frozen=True)
class _Layer:
    """A layer's C structure, and the handle whose memory it points to."""

    handle: LayerHandle
    memory: library.Layer
    address: int


class NativeAttention(AttentionBackend):
    """Paged attention of one layer group in C++. Refuses at build what its descriptor does not declare."""

    def __init__(self, build: AttentionBuild) -> None:
        assert isinstance(build.options, Options)
        spec, layout = build.group.spec, build.layout
        facts = DeviceFacts("cpu", "any", "any", dtypes=frozenset({spec.dtype}))
        reason = check_spec(PART, spec, capabilities(facts))
        if spec.kv_dtype != spec.dtype:
            reason = reason or f"keeps KV in the model's {spec.dtype}, not in {spec.kv_dtype}"
        if spec.head_dim != spec.v_head_dim or tuple(plane.name for plane in layout.planes) != ("k", "v"):
            reason = reason or f"needs keys and values of one size in the layout nhd/1, not {layout.name}"
        if spec.window and not spec.causal:
            reason = reason or "has no meaning for a window without a causal mask"
        if reason:
            raise Unsupported(PART, reason, "name another backend under [attention] for these layers")
        found = library.load()
        if found is None:
            raise DeviceAbsent(PART, "has no kernels for this processor", 'write use = "torch" under [attention]')
        self._kernels = found
        self._spec = spec
        self._options = build.options
        self._platform = build.platform
        self._group = library.Group(
            library.DTYPES[spec.dtype],
            spec.q_heads,
            spec.kv_heads,
            spec.head_dim,
            spec.window,
            torch.get_num_threads(),
            max(1, QUERIES * spec.kv_heads // spec.q_heads),
            spec.scale,
            spec.soft_cap,
        )
        self._group_address = ctypes.addressof(self._group)
        self._layers: dict[int, _Layer] = {}
        self._parts = AttentionParts()

    def new_plan(self, limits: Limits) -> NativePlan:
        """A workspace for the partial results of the largest step. Raises `OutOfMemory`."""
        spec, group = self._spec, self._group
        tokens = 3 * max(limits.max_tokens, limits.max_rows)
        partials = self._platform.allocate("workspace", (tokens, spec.q_heads, spec.head_dim + 2), torch.float32)
        return NativePlan(partials, Shape(spec.kv_heads, group.block, spec.window, spec.causal, group.threads, tokens))

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Cut the step. Raises `Unsupported` for any batch feature, and for lengths that are not exact."""
        assert isinstance(plan, NativePlan)
        if batch.features:
            raise Unsupported(PART, f"does not understand the feature {', '.join(sorted(batch.features))}")
        if not batch.exact:
            raise Unsupported(PART, "needs exact lengths on the host", "run with scheduler.depth = 0")
        cut = StepCut(batch.host_q, batch.host_context, view.host_pages, view.page_tokens, plan.shape)
        plan.work = work = cut.work(batch.leading, self._options.share_prefixes, batch.groups)
        plan.view = view
        step = plan.step
        step.pieces, step.merges, step.ids = (array.ctypes.data for array in (work.pieces, work.merges, work.ids))
        step.page_table, step.page_table_stride = view.page_table.data_ptr(), view.page_table.stride(0)
        step.slots, step.partials = view.slot_mapping.data_ptr(), plan.partials.data_ptr()
        step.n_pieces[:], step.n_items[:], step.n_merges[:] = work.n_pieces, work.n_items, work.n_merges
        step.tokens, step.page_tokens = batch.tokens, view.page_tokens

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Copy k and v to the step's slots."""
        assert isinstance(plan, NativePlan)
        k, v = _dense_token(k), _dense_token(v)
        self._kernels.store(
            self._group_address,
            plan.address,
            self._layer(layer),
            k.data_ptr(),
            v.data_ptr(),
            k.stride(0),
            v.stride(0),
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
        """As the contract says. Reads stored entries, never `fresh`: they are in the cache just now."""
        assert isinstance(plan, NativePlan)
        q = _dense_token(q)
        self._kernels.attend(
            self._group_address,
            plan.address,
            self._layer(layer),
            q.data_ptr(),
            q.stride(0),
            out.data_ptr(),
            None if lse is None else lse.data_ptr(),
            ROWS[rows],
        )

    def parts(self) -> AttentionParts:
        """None."""
        return self._parts

    def close(self) -> None:
        """Forget the layers' memory."""
        self._layers.clear()

    def _layer(self, handle: LayerHandle) -> int:
        found = self._layers.get(handle.index)
        if found is None or found.handle is not handle:
            k, v = handle.planes["k"], handle.planes["v"]
            assert k[0].is_contiguous() and v[0].is_contiguous(), "a page of nhd/1 is dense"
            assert (handle.sinks is not None) == self._spec.sinks, "the layer came without its sinks"
            sinks = None if handle.sinks is None else handle.sinks.data_ptr()
            memory = library.Layer(k.data_ptr(), v.data_ptr(), k.stride(0), v.stride(0), sinks)
            found = self._layers[handle.index] = _Layer(handle, memory, ctypes.addressof(memory))
        return found.address


def _dense_token(x: Tensor) -> Tensor:
    """x [T, heads, size] with dense tokens; they may be strided among each other."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
