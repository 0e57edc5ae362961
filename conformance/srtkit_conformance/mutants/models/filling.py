"""Models whose parameters are not filled, or not filled again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from srtkit.spec.models import Model, ModelPlan, PlanRequest
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.models.wrap import WrappedModel, around, planning

NORM = "model.norm.weight"


def _forgets(plan: ModelPlan, request: PlanRequest) -> ModelPlan:
    return replace(plan, weights=tuple(entry for entry in plan.weights if entry.parameter != NORM))


forgets_a_norm = mutant(
    "models.forgets_a_norm",
    of="models",
    sentence="The weight map leaves the last norm out.",
    killed_by=("models.filled",),
)(planning(_forgets))


class Transposed(WrappedModel):
    """Matrices [in, out]."""

    def slots(self) -> Mapping[str, Tensor]:
        return {name: slot if slot.dim() == 1 else slot.T for name, slot in super().slots().items()}


transposed = mutant(
    "models.transposed",
    of="models",
    sentence="Slots are transposed.",
    killed_by=("models.slots",),
)(around(Transposed))


class PacksOnce(WrappedModel):
    def __init__(self, inner: Model) -> None:
        super().__init__(inner)
        self._done = False

    def pack(self) -> None:
        if not self._done:
            super().pack()
        self._done = True


packs_once = mutant(
    "models.packs_once",
    of="models",
    sentence="Weights that are loaded again are not packed.",
    killed_by=("models.reload",),
)(around(PacksOnce))
