"""Attention in plain tensor arithmetic over whole page tables, so that one recording serves every length.

No number of a batch is read by the host. Knows causal attention over planes k and v, and no feature.
"""

from __future__ import annotations

from typing import Any

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
)
from srtkit.spec.facts import Limits


class Plan(AttentionPlan):
    """What `fill` was given last."""

    batch: Batch
    view: GroupView

    def close(self) -> None:
        """Holds nothing."""


class WholeTables(AttentionBackend):
    """The backend of one layer group."""

    def __init__(self, build: AttentionBuild) -> None:
        self._spec = build.group.spec

    def new_plan(self, limits: Limits) -> Plan:
        """An empty one."""
        return Plan()

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Remembers the step's columns, which lie where they lay when it was recorded."""
        assert isinstance(plan, Plan)
        plan.batch, plan.view = batch, view

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Each token into its slot."""
        assert isinstance(plan, Plan)
        for plane, new in ((layer.planes["k"], k), (layer.planes["v"], v)):
            plane.view(-1, *plane.shape[2:]).index_copy_(0, plan.view.slot_mapping.long(), new.contiguous())

    def attend(self, plan: AttentionPlan, layer: LayerHandle, q: Tensor, out: Tensor, **given: Any) -> None:
        """Every token over all pages of its row; what it must not see has no weight."""
        assert isinstance(plan, Plan)
        batch, pages = plan.batch, plan.view.page_table.long()
        row = torch.bucketize(torch.arange(batch.tokens, device=q.device), batch.cu_q[1:], right=True)
        k, v = (layer.planes[name][pages].flatten(1, 2)[row] for name in ("k", "v"))
        times = self._spec.q_heads // self._spec.kv_heads
        k, v = k.repeat_interleave(times, 2), v.repeat_interleave(times, 2)
        scores = torch.einsum("thd,tnhd->thn", q, k) * self._spec.scale
        seen = torch.arange(k.shape[1], device=q.device)[None] <= batch.positions[:, None]
        weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        out.copy_(torch.einsum("thn,tnhd->thd", weights, v))

    def parts(self) -> AttentionParts:
        """None."""
        return AttentionParts()

    def close(self) -> None:
        """Holds nothing."""
