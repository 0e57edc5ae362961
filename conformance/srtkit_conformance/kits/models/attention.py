"""Attention over sequences that are kept whole, without pages: what a model is run on. Knows no model.

Sequence 0 is padding: its tokens see one another and are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionParts,
    AttentionPlan,
    AttentionSpec,
    Batch,
    GroupView,
    LayerHandle,
    Rows,
)
from srtkit.spec.facts import Limits

PADDING = 0


class Lengths(AttentionPlan):
    """The sequences of a step with their tokens, in order."""

    def __init__(self) -> None:
        self.rows: Sequence[tuple[int, int]] = ()

    def close(self) -> None:
        self.rows = ()


class WholeSequences(AttentionBackend):
    """One layer's keys and values, by sequence."""

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def new_plan(self, limits: Limits) -> AttentionPlan:
        return Lengths()

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        raise AssertionError("the rig sets the lengths")

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        assert isinstance(plan, Lengths)
        if self._spec.mla is not None:  # latent and rope part: one key of both, the latent is the value
            k, v = torch.cat((k, v), -1).unsqueeze(1), k.unsqueeze(1)
        self._kept.pop(PADDING, None)
        start = 0
        for sequence, count in plan.rows:
            new = k[start : start + count], v[start : start + count]
            old = self._kept.get(sequence, (k[:0], v[:0]))
            self._kept[sequence] = torch.cat((old[0], new[0])), torch.cat((old[1], new[1]))
            start += count

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
        assert isinstance(plan, Lengths)
        start = 0
        for sequence, count in plan.rows:
            k, v = self._kept[sequence]
            out[start : start + count] = attended(self._spec, q[start : start + count], k, v)
            start += count

    def parts(self) -> AttentionParts:
        return AttentionParts()

    def close(self) -> None:
        self._kept.clear()


def attended(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last tokens' queries [Q, q_heads, D] over all keys [K, kv_heads, D] → [Q, q_heads, v_head_dim]."""
    place = torch.arange(len(k), device=k.device)
    last = place[len(k) - len(q) :].unsqueeze(1)
    hidden = place > last
    if spec.window:
        hidden = hidden | (place <= last - spec.window)
    out = []
    for head in range(spec.q_heads):
        kv = head // (spec.q_heads // spec.kv_heads)
        scores = (q[:, head] @ k[:, kv].T) * spec.scale
        if spec.soft_cap:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        out.append(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v[:, kv])
    return torch.stack(out, 1)
