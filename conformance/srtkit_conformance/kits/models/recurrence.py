"""Recurrences by the formulas, over sequences whose states are kept apart: what a model is run on. Knows no model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from srtkit.spec.attention import Batch
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import Limits
from srtkit.spec.recurrent import RecurrentBackend, RecurrentLayer, RecurrentPlan, RecurrentSpec, Snapshots
from srtkit_conformance.kits.models.attention import PADDING, Lengths
from srtkit_conformance.kits.recurrent.gold import Gold


class RecurrentLengths(RecurrentPlan):
    """The sequences of a step, which are those of the attention layers."""

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths

    def close(self) -> None:
        self.lengths.close()


class WholeStates(RecurrentBackend):
    """One layer's states in float64, by sequence. The state of padding is begun anew in every step."""

    def __init__(self, spec: RecurrentSpec) -> None:
        self._spec = spec
        self._kept: dict[int, Gold] = {}

    def new_plan(self, limits: Limits) -> RecurrentPlan:
        return RecurrentLengths(Lengths())

    def fill(
        self, plan: RecurrentPlan, batch: Batch, state_slots: Tensor, snapshots: Snapshots | None, keep: int
    ) -> None:
        raise AssertionError("the rig sets the lengths")

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        assert isinstance(plan, RecurrentLengths)
        start = 0
        weights = {name: tensor.cpu() for name, tensor in layer.weights.items()}
        for sequence, count in plan.lengths.rows:
            if sequence == PADDING:
                self._kept.pop(PADDING, None)
            gold = self._kept.setdefault(sequence, Gold(self._spec, weights))
            tokens = {name: values[start : start + count].cpu() for name, values in inputs.items()}
            out[start : start + count] = gold.advance(tokens).to(out)
            start += count

    def fork(self, layer: RecurrentLayer, source: Tensor, target: Tensor) -> None:
        raise AssertionError("no sequence is forked")

    def zero(self, layer: RecurrentLayer, slots: Tensor) -> None:
        raise AssertionError("states begin at zero")

    def accept(self, plan: RecurrentPlan, layer: RecurrentLayer, n_accepted: Tensor) -> None:
        raise Unsupported("recurrence", "keeps no states")

    def close(self) -> None:
        self._kept.clear()
