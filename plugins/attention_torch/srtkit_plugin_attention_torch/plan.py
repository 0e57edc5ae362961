"""What one plan holds from a `fill` to the next. No computation."""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.attention import AttentionPlan, Rows
from srtkit_plugin_attention_torch.fast import Buffers, Call
from srtkit_plugin_attention_torch.rows import ReferenceStep


class TorchPlan(AttentionPlan):
    """Buffers of the fast path (None without it), and the step that `fill` put in.

    `slots` int64 [T] are where new entries go, `consecutive` the same as a range where it is one.
    `calls` None: the step takes the reference path.
    """

    def __init__(self, buffers: Buffers | None) -> None:
        self.buffers = buffers
        self.slots: Tensor = torch.empty(0, dtype=torch.int64)
        self.consecutive: slice | None = None
        self.calls: dict[Rows, list[Call]] | None = None
        self.reference: ReferenceStep | None = None

    @property
    def step(self) -> ReferenceStep:
        """The step filled in last."""
        assert self.reference is not None, "attend before fill"
        return self.reference

    def close(self) -> None:
        """Free the buffers."""
        self.buffers = self.calls = self.reference = None
