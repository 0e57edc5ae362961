"""The backend: takes each row's state out of its slot, hands it to the kernel, and puts it back.

Everything of one step lives in the plan. Knows slots and rows; the arithmetic is in `kernel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from srtkit.spec.attention import Batch
from srtkit.spec.capabilities import missing_features, require
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.recurrent import RecurrentBackend, RecurrentBuild, RecurrentLayer, RecurrentPlan, Snapshots
from srtkit_plugin_recurrent_my_plugin import DTYPES, Options, capabilities
from srtkit_plugin_recurrent_my_plugin.kernel import step_row

PART = "recurrent:my-plugin"
COMPUTE_DTYPES = {"float32": torch.float32, "float64": torch.float64}
DECLARED = capabilities(DeviceFacts("any", "any", "any", dtypes=DTYPES))
"""On any device; core compares with the device's own."""


@dataclass
class Row:
    """Tokens [start, stop) of the step, and the slot that their state stands in. Slot 0 is padding."""

    start: int
    stop: int
    slot: int


@final
@dataclass
class MyPluginPlan(RecurrentPlan):
    """One step: its rows, and the copies to make when they have stepped, int64 slots [n] each."""

    rows: list[Row] = field(default_factory=list)
    snapshots: tuple[Tensor, Tensor] | None = None

    def close(self) -> None:
        """Forget the step."""
        self.rows, self.snapshots = [], None


@final
class MyPluginBackend(RecurrentBackend):
    """Recurrent layers of one spec."""

    def __init__(self, build: RecurrentBuild) -> None:
        """Raises `Unsupported` for a layer that the capabilities do not cover."""
        assert isinstance(build.options, Options)
        self._spec = spec = build.spec
        require(missing_features(spec.features, DECLARED.features), PART, "these layers")
        if spec.dtype not in DECLARED.dtypes or spec.state_dtype != "float32":
            raise Unsupported(PART, f"has no kernel for {spec.dtype} with states in {spec.state_dtype}")
        self._dtype = COMPUTE_DTYPES[build.options.compute_dtype]

    def new_plan(self, limits: Limits) -> MyPluginPlan:
        """An empty plan. A backend that is captured allocates its buffers here, as large as `limits` says."""
        return MyPluginPlan()

    def fill(
        self, plan: RecurrentPlan, batch: Batch, state_slots: Tensor, snapshots: Snapshots | None, keep: int
    ) -> None:
        """Note where every row's state stands. Raises `Unsupported` for what is not declared."""
        assert isinstance(plan, MyPluginPlan)
        require(missing_features(batch.features, frozenset()), PART, "this step")
        if keep:
            require(DECLARED.keep, PART, "kept states")
        bounds = [0, *batch.host_q.cumsum().tolist()]
        slots = state_slots.tolist()
        plan.rows = [Row(*span, slot) for span, slot in zip(pairwise(bounds), slots, strict=True) if span[0] < span[1]]
        plan.snapshots = None
        if snapshots is not None:
            rows = snapshots.row.long()
            if (snapshots.offset != torch.from_numpy(batch.host_q)[rows]).any():
                require(DECLARED.inner_snapshots, PART, "snapshots inside a row")
            source = state_slots[rows.to(state_slots.device)].long()
            plan.snapshots = source, snapshots.target.to(state_slots.device).long()

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """Row by row; padding gets zeros."""
        assert isinstance(plan, MyPluginPlan)
        conv, states = layer.planes["conv"], layer.planes["state"]
        for row in plan.rows:
            if row.slot == 0:
                out[row.start : row.stop] = 0
                continue
            xbc = torch.cat((conv[row.slot], inputs["xbc"][row.start : row.stop]))
            dt = inputs["dt"][row.start : row.stop].to(self._dtype)
            result, state = step_row(self._spec, layer.weights, xbc.to(self._dtype), dt, states[row.slot])
            out[row.start : row.stop] = result.to(out.dtype)
            conv[row.slot], states[row.slot] = xbc[len(dt) :], state
        if plan.snapshots is not None:
            self.fork(layer, *plan.snapshots)

    def fork(self, layer: RecurrentLayer, source: Tensor, target: Tensor) -> None:
        """Copy both planes between slots."""
        for plane in layer.planes.values():
            plane[target.long()] = plane[source.long()]

    def zero(self, layer: RecurrentLayer, slots: Tensor) -> None:
        """Zero both planes, whatever stands there."""
        for plane in layer.planes.values():
            plane[slots.long()] = 0

    def accept(self, plan: RecurrentPlan, layer: RecurrentLayer, n_accepted: Tensor) -> None:
        """No states are kept."""
        require(DECLARED.keep, PART, "accept")

    def close(self) -> None:
        """Nothing is held between steps."""
