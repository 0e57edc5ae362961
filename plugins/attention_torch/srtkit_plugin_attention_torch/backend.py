"""The backend of one layer group: refuses what it does not cover, and chooses a path for each step.

The fast path (fast.py) takes steps without a tree mask of plain causal layers, windows included, in one
dtype on a CPU; all else goes to the reference path (rows.py). Knows the contract; computes nothing itself.
"""

from __future__ import annotations

import numpy as np
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
    Rows,
    check_spec,
)
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.layers import DTYPES
from srtkit_plugin_attention_torch import FLOATS, PAGE_SIZES, Options, capabilities
from srtkit_plugin_attention_torch import fast as fast_path
from srtkit_plugin_attention_torch.dense import AdvanceTorch, DenseTorch, MoverTorch
from srtkit_plugin_attention_torch.entries import Entries
from srtkit_plugin_attention_torch.pieces import StepCut
from srtkit_plugin_attention_torch.plan import TorchPlan
from srtkit_plugin_attention_torch.rows import ReferenceStep

PART = "attention:torch"
FAST_KINDS = frozenset({"window"})  # features of a spec that the fast path knows
CONSECUTIVE_STORE = 64  # from so many tokens on a plain copy beats an indexed one


class TorchAttention(AttentionBackend):
    """Paged attention of one layer group in torch."""

    def __init__(self, build: AttentionBuild) -> None:
        assert isinstance(build.options, Options)
        self._spec = spec = build.group.spec
        self._platform = build.platform
        self._device = build.platform.device(build.device_index)
        self._names = _plane_names(spec)
        self._options = build.options
        self._entries: dict[int, Entries] = {}
        _refuse(build)
        self._dtype = DTYPES[spec.dtype]
        self._heads = fast_path.Heads(spec.kv_heads, spec.q_heads // spec.kv_heads, spec.head_dim)
        self._fast = (
            build.options.fast
            and self._device.type == "cpu"
            and spec.features <= FAST_KINDS
            and spec.kv_dtype == spec.dtype
            and spec.v_head_dim == spec.head_dim
        )
        self._parts = AttentionParts(
            dense=DenseTorch(spec, self.entries), advance=AdvanceTorch(self.fill), mover=MoverTorch(self.entries)
        )

    def new_plan(self, limits: Limits) -> TorchPlan:
        """Buffers for the longest sequence and the largest step, on the fast path only. Raises `OutOfMemory`."""
        if not self._fast:
            return TorchPlan(None)
        gathered = max(self._gather_budget(), limits.max_context, limits.max_tokens)
        buffers = fast_path.Buffers(self._platform, self._heads, gathered, limits.max_tokens, self._dtype)
        return TorchPlan(buffers)

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Cut the step into pieces, or keep it for the reference path. Mutates `plan` only.

        Raises `Unsupported` for a feature other than a tree mask, and for lengths that are not exact.
        """
        assert isinstance(plan, TorchPlan)
        unknown = batch.features - {"tree_mask"}
        if unknown:
            raise Unsupported(PART, f"does not understand the feature {', '.join(sorted(unknown))}")
        if not batch.exact:
            raise Unsupported(PART, "needs exact lengths on the host", "run with scheduler.depth = 0")
        self._place_new_tokens(plan, view)
        plan.reference = ReferenceStep(batch, view)
        plan.calls = None
        if plan.buffers is not None and batch.tree is None:
            plan.calls = self._cut(plan.buffers, batch, view)

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Write k and v (for MLA latent and rope part) at the step's slots."""
        assert isinstance(plan, TorchPlan)
        entries = self.entries(layer)
        if not self._fast or entries.rows is None:
            entries.first.write(plan.slots, k)
            entries.second.write(plan.slots, v)
            return
        k_rows, v_rows = entries.rows
        if plan.consecutive is not None:
            k_rows[plan.consecutive].copy_(k)
            v_rows[plan.consecutive].copy_(v)
        else:
            k_rows.index_copy_(0, plan.slots, k)
            v_rows.index_copy_(0, plan.slots, v)

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
        """As the contract says; `fresh` saves reading back what was stored a moment ago."""
        assert isinstance(plan, TorchPlan)
        entries = self.entries(layer)
        if plan.calls is None or plan.buffers is None or entries.rows is None:
            plan.step.attend(self._spec, entries, q, out, rows, lse)
            return
        heads = self._heads
        shape = (q.shape[0], heads.kv_heads, heads.ratio, heads.head_dim)
        output = fast_path.Output(out.view(shape), None if lse is None else lse.view(*shape[:3], 1))
        fast_path.attend(plan.calls[rows], q.view(shape), entries.rows, fresh, self._spec.scale, plan.buffers, output)

    def parts(self) -> AttentionParts:
        """Dense attention, advance and the slot mover."""
        return self._parts

    def close(self) -> None:
        """Forget the layers' planes."""
        self._entries.clear()

    def entries(self, layer: LayerHandle) -> Entries:
        """The layer's planes by slot; made once for each handle."""
        found = self._entries.get(layer.index)
        if found is None or found.layer is not layer:
            found = self._entries[layer.index] = Entries(layer, self._names)
        return found

    def _gather_budget(self) -> int:
        """Tokens whose keys fill the workspace that the options allow."""
        return max(1, self._options.workspace_kib * 1024 // (self._heads.width * self._dtype.itemsize))

    def _place_new_tokens(self, plan: TorchPlan, view: GroupView) -> None:
        plan.slots = view.slot_mapping.long()
        plan.consecutive = None
        tokens = len(plan.slots)
        if self._fast and tokens >= CONSECUTIVE_STORE:
            slots = plan.slots.numpy()
            if slots[-1] - slots[0] == tokens - 1 and (np.diff(slots) == 1).all():
                plan.consecutive = slice(int(slots[0]), int(slots[0]) + tokens)

    def _cut(self, buffers: fast_path.Buffers, batch: Batch, view: GroupView) -> dict[Rows, list[fast_path.Call]]:
        cut = StepCut(
            batch.host_q,
            batch.host_context,
            view.host_pages,
            view.page_tokens,
            self._spec.window,
            self._gather_budget(),
        )
        sections = {
            Rows.LEADING: cut.pieces(0, batch.leading, batch.groups),
            Rows.REST: cut.pieces(batch.leading, batch.rows),
        }
        calls = {
            rows: [fast_path.make_call(piece, self._heads, buffers) for piece in pieces]
            for rows, pieces in sections.items()
        }
        calls[Rows.ALL] = calls[Rows.LEADING] + calls[Rows.REST]
        return calls


def _plane_names(spec: AttentionSpec) -> tuple[str, str]:
    return ("k", "v") if spec.mla is None else ("latent", "rope")


def _refuse(build: AttentionBuild) -> None:
    """Raise `Unsupported` unless the spec and the layout are among those declared."""
    spec, layout = build.group.spec, build.layout
    anywhere = DeviceFacts("any", "any", "any", dtypes=FLOATS)  # core compares with the device's own
    reason = check_spec(PART, spec, capabilities(anywhere))
    if spec.mla is not None and _absorbed(spec.mla) != (spec.kv_heads, spec.head_dim, spec.v_head_dim):
        reason = "takes MLA in absorbed form: one KV head, head size rank + rope, value size rank"
    elif spec.window and not spec.causal:
        reason = "has no meaning for a window without a causal mask"
    elif layout.page_tokens not in PAGE_SIZES or tuple(plane.name for plane in layout.planes) != _plane_names(spec):
        reason = f"does not read the layout {layout.name} with pages of {layout.page_tokens}"
    if reason:
        raise Unsupported(PART, reason, "name another backend under [attention] for these layers")


def _absorbed(mla: MlaDims) -> tuple[int, int, int]:
    """KV heads, head size and value size of absorbed attention."""
    return 1, mla.rank + mla.rope, mla.rank
