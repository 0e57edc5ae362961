"""What all kinds of layers have in common as backends: steps are taken, divided into calls, and laid out anew."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import numpy as np
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionParts,
    AttentionPlan,
    Batch,
    DenseAttention,
    GroupView,
    LayerHandle,
    PlanAdvance,
    Rows,
    SlotMover,
)
from srtkit.spec.errors import Unsupported
from srtkit_plugin_attention_aiter import PART
from srtkit_plugin_attention_aiter.library import Library
from srtkit_plugin_attention_aiter.step import AiterPlan, Call, last_dense
from srtkit_plugin_attention_aiter.table import MAX_Q_LEN, Routes


class AiterAttention(AttentionBackend):
    """Attention of one layer group by aiter's kernels.

    `part` names it in errors; `features` of batches that it understands, `longest_query` of leading rows.
    """

    part = PART
    features = frozenset({"tree_mask"})
    longest_query = MAX_Q_LEN

    def __init__(
        self,
        build: AttentionBuild,
        library: Library,
        routes: Routes,
        mover: SlotMover,
        dense: DenseAttention | None = None,
    ) -> None:
        self._spec = build.group.spec
        self._library = library
        self._platform = build.platform
        self._routes = routes
        self._parts = AttentionParts(dense, AiterAdvance(self), mover)

    @abstractmethod
    def look_up(self, plan: AiterPlan, call: Call) -> None:
        """Write on the device where the call's keys stand, in the form that its kernel wants.

        Not for the extend kernel, nor for drafts as rows: both are the same for all kinds of layers.
        """

    @abstractmethod
    def run(self, plan: AiterPlan, call: Call, layer: LayerHandle, q: Tensor, out: Tensor) -> None:
        """Call the kernel: q, out of the call's tokens."""

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Lay out the step's calls. Raises `Unsupported` for other features of batches, and for longer leading rows."""
        assert isinstance(plan, AiterPlan)
        if unknown := batch.features - self.features:
            raise Unsupported(self.part, f"does not understand the feature {', '.join(sorted(unknown))}")
        if batch.leading and batch.q_len > self.longest_query:
            raise Unsupported(
                self.part, f"has at most {self.longest_query} queries in a leading row, not {batch.q_len}"
            )
        self.lay_out(plan, batch, view)

    def lay_out(self, plan: AiterPlan, batch: Batch, view: GroupView) -> None:
        """Divide the step into calls, and look up the keys of each."""
        plan.divide(self._routes, batch, view)
        for call in plan.calls:
            if call.kernel == "extend":
                plan.list_keys(call, 1, stored=True)
                plan.mask_drafts(call)
            elif call.kernel == "drafts":
                plan.tabulate_drafts(call, self._spec.window)
            else:
                self.look_up(plan, call)

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
        """As the contract says. Reads what is stored, never `fresh`. Raises `Unsupported` if `lse` is asked for."""
        assert isinstance(plan, AiterPlan)
        if lse is not None:
            raise Unsupported(self.part, "gives no log-sum-exp: aiter's decode kernels have none")
        for call in plan.calls:
            if rows is Rows.ALL or call.leading == (rows is Rows.LEADING):
                self.run(plan, call, layer, last_dense(q[call.tokens]), out[call.tokens])

    def parts(self) -> AttentionParts:
        """Advance, the slot mover, and dense attention if there is any."""
        return self._parts

    def close(self) -> None:
        """Nothing is held."""


class AiterAdvance(PlanAdvance):
    """Lays a step out anew."""

    def __init__(self, backend: AiterAttention) -> None:
        self._backend = backend

    def advance(self, plan: AttentionPlan) -> None:
        """Calls follow the device's lengths, of which the host knows no bound but the table's."""
        assert isinstance(plan, AiterPlan)
        batch, view = plan.step
        room = np.full(batch.rows, view.page_table.shape[1] * view.page_tokens, np.int32)
        self._backend.lay_out(plan, replace(batch, host_context=room), view)
