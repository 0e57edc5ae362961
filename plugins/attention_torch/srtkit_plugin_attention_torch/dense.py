"""The optional parts: attention over dense tensors, reading entries back, merging, moving slots, advancing a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from srtkit.spec.attention import (
    AttentionPlan,
    AttentionSpec,
    Batch,
    DenseAttention,
    GroupView,
    LayerHandle,
    PlanAdvance,
    SlotMover,
)
from srtkit_plugin_attention_torch import reference
from srtkit_plugin_attention_torch.entries import Entries
from srtkit_plugin_attention_torch.plan import TorchPlan

EntriesOf = Callable[[LayerHandle], Entries]
Fill = Callable[[AttentionPlan, Batch, GroupView], None]


class DenseTorch(DenseAttention):
    """Dense attention with the group's scale, window and soft cap. Sinks belong to a layer and are not applied."""

    def __init__(self, spec: AttentionSpec, entries: EntriesOf) -> None:
        self._spec = spec
        self._entries = entries

    def attend_dense(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu: tuple[Tensor, Tensor],
        out: Tensor,
        *,
        causal: bool = True,
        lse: Tensor | None = None,
    ) -> None:
        """q [T, q_heads, d], k [S, kv_heads, d], v [S, kv_heads, dv] in rows by `cu`; a query without keys gets 0."""
        spec = self._spec
        cu_q, cu_k = (bounds.tolist() for bounds in cu)
        for q0, q1, k0, k1 in zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:], strict=True):
            if q0 == q1:
                continue
            if k0 == k1:
                out[q0:q1] = 0
                if lse is not None:
                    lse[q0:q1] = -torch.inf
                continue
            see = reference.visible(q1 - q0, k1 - k0, spec.window, causal, q.device)
            row_out, row_lse = reference.attention(
                q[q0:q1].float(), k[k0:k1].float(), v[k0:k1].float(), see, spec.scale, spec.soft_cap
            )
            out[q0:q1] = row_out.to(out.dtype)
            if lse is not None:
                lse[q0:q1] = row_lse

    def gather(
        self, plan: AttentionPlan, layer: LayerHandle, row: int, start: int, stop: int, out: tuple[Tensor, Tensor]
    ) -> None:
        """Stored tokens [start, stop) of a row as given to `store`, dequantised: k and v, or latent and rope part."""
        assert isinstance(plan, TorchPlan)
        entries = self._entries(layer)
        slots = plan.step.slots(row, start, stop, out[0].device)
        out[0].copy_(entries.first.read(slots))
        out[1].copy_(entries.second.read(slots))

    def merge(self, out: Tensor, lse: Tensor, out2: Tensor, lse2: Tensor) -> None:
        """out and lse become the result over both parts; computed in float32, rounded once."""
        merged, total = reference.merge(out, lse, out2, lse2)
        out.copy_(merged)
        lse.copy_(total)


class MoverTorch(SlotMover):
    """Moves stored tokens."""

    def __init__(self, entries: EntriesOf) -> None:
        self._entries = entries

    def move_slots(self, layer: LayerHandle, source: Tensor, target: Tensor) -> None:
        """Copy the entries at int32 `source` [n] to `target` [n], both planes."""
        entries = self._entries(layer)
        entries.first.move(source.long(), target.long())
        entries.second.move(source.long(), target.long())


class AdvanceTorch(PlanAdvance):
    """Cuts the step anew. Lengths are needed on the host, so it waits for the device: no graph holds it."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill

    def advance(self, plan: AttentionPlan) -> None:
        """Fill from the batch's own tensors, whose lengths and slots have changed since."""
        assert isinstance(plan, TorchPlan)
        step = plan.step
        self._fill(plan, replace(step.batch, host_context=step.batch.context.cpu().numpy().copy()), step.view)
