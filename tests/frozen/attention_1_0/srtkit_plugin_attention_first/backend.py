"""The backend: finds each row's keys and values in the pages and hands them to the kernel.

Everything of one step lives in the plan. Knows pages and rows; the arithmetic is in `kernel`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import final

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
from srtkit.spec.capabilities import No, missing_features, require
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit_plugin_attention_first import DTYPES, Options, capabilities
from srtkit_plugin_attention_first.kernel import attend_row

PART = "attention:first"
SCORE_DTYPES = {"float32": torch.float32, "float64": torch.float64}
NOTHING = torch.empty(0, dtype=torch.int64)


@dataclass
class Row:
    """Query tokens [start, stop) of the step, over `context` stored tokens in `pages` (int32, in order)."""

    start: int
    stop: int
    context: int
    pages: Tensor


@final
@dataclass
class FirstPlan(AttentionPlan):
    """One step: its rows, of which the first `leading` lead, and where each new token is stored."""

    leading: int = 0
    rows: list[Row] = field(default_factory=list)
    page: Tensor = NOTHING
    offset: Tensor = NOTHING

    def chosen(self, rows: Rows) -> list[Row]:
        """The rows that a call covers."""
        if rows is Rows.LEADING:
            return self.rows[: self.leading]
        return self.rows[self.leading :] if rows is Rows.REST else self.rows

    def close(self) -> None:
        """Forget the step."""
        self.rows = []


@final
class FirstBackend(AttentionBackend):
    """Attention of one layer group over "nhd/1" pages."""

    def __init__(self, build: AttentionBuild) -> None:
        """Raises `Unsupported` for a layer that the capabilities do not cover."""
        assert isinstance(build.options, Options)
        anywhere = DeviceFacts("any", "any", "any", dtypes=DTYPES)  # core compares with the device's own
        if reason := check_spec(PART, build.group.spec, capabilities(anywhere)):
            raise Unsupported(PART, reason)
        self._scale = build.group.spec.scale
        self._dtype = SCORE_DTYPES[build.options.score_dtype]

    def new_plan(self, limits: Limits) -> FirstPlan:
        """An empty plan. A backend that is captured allocates its buffers here, as large as `limits` says."""
        return FirstPlan()

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Note where every row's tokens stand. Raises `Unsupported` for features of the batch."""
        assert isinstance(plan, FirstPlan)
        require(missing_features(batch.features, frozenset()), PART, "this step")
        if not batch.exact:
            require(No("it needs every length on the host"), PART, "a step with estimated lengths")
        bounds = [0, *batch.host_q.cumsum().tolist()]
        contexts = batch.host_context.tolist()
        plan.leading = batch.leading
        plan.rows = [
            Row(start, stop, context, pages[: -(-context // view.page_tokens)])
            for (start, stop), context, pages in zip(pairwise(bounds), contexts, view.page_table, strict=True)
        ]
        slots = view.slot_mapping.long()
        plan.page, plan.offset = slots // view.page_tokens, slots % view.page_tokens

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Write the new tokens' keys and values into their slots."""
        assert isinstance(plan, FirstPlan)
        for name, values in (("k", k), ("v", v)):
            plane = layer.planes[name]
            plane[plan.page, plan.offset] = values.to(plane.dtype)

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
        """Row by row. `fresh` is a hint that is not taken: what `store` wrote is read back."""
        assert isinstance(plan, FirstPlan)
        if lse is not None:
            require(No("not written yet"), PART, "log-sum-exp")
        for row in plan.chosen(rows):
            k, v = (layer.planes[name][row.pages].flatten(0, 1)[: row.context] for name in ("k", "v"))
            out[row.start : row.stop] = attend_row(q[row.start : row.stop], k, v, self._scale, self._dtype)

    def parts(self) -> AttentionParts:
        """No optional calls."""
        return AttentionParts()

    def close(self) -> None:
        """Nothing is held between steps."""
