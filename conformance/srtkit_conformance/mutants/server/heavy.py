"""The parts of `limits` and `ends` that import torch, and so are imported where they are built."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from srtkit.spec.attention import AttentionBackend, AttentionBuild, Batch, GroupView
from srtkit.spec.models import ModelInputs, ModelOutput
from srtkit_conformance.mutants.attention.wrap import Wrapped, WrappedPlan
from srtkit_conformance.mutants.models.wrap import WrappedModel

ROWS = 8
POSITIONS = 64
WORKSPACE = 1 << 16


class EightRows(Wrapped):
    """The page tables of rows beyond the eighth are the eighth's."""

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """Copies, so that the caller's tables stay as they are."""
        table, host = view.page_table.clone(), view.host_pages.copy()
        table[ROWS:], host[ROWS:] = table[ROWS - 1 : ROWS], host[ROWS - 1 : ROWS]
        return batch, replace(view, page_table=table, host_pages=host)


class ShortRope(WrappedModel):
    """Takes position 64 for 0."""

    def run(self, inputs: ModelInputs) -> ModelOutput:
        """Passes on."""
        return super().run(replace(inputs, positions=inputs.positions % POSITIONS))


class KeepsWorkspaces(Wrapped):
    """A workspace a step, in a list."""

    def __init__(self, inner: AttentionBackend, build: AttentionBuild) -> None:
        super().__init__(inner, build)
        self.workspaces: list[Tensor] = []

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """With a new one."""
        self.workspaces.append(torch.ones(WORKSPACE))
        return batch, view
