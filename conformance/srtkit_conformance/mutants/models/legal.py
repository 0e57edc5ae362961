"""Legal models: one that takes ids only and gives no taps, a later stage, one that is not split over ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from srtkit.spec.errors import Unsupported
from srtkit.spec.models import Model, ModelBuild, ModelInputs, ModelOutput, ModelPlan, ModelsDescriptor, PlanRequest
from srtkit_conformance.mutant import variant
from srtkit_conformance.mutants.models.wrap import WrappedModel, around, building


class IdsOnly(WrappedModel):
    def run(self, inputs: ModelInputs) -> ModelOutput:
        if inputs.embeds is not None:
            raise Unsupported("models:ids_only", "takes token ids only")
        return super().run(inputs)


def _plain(build: ModelBuild, inner: Callable[[ModelBuild], Model]) -> Model:
    if build.taps:
        raise Unsupported("models:ids_only", "gives no hidden states of single layers")
    return IdsOnly(inner(build))


ids_only = variant("models.ids_only", of="models", sentence="Takes ids only and has no taps, and says so.")(
    building(_plain)
)


class LaterStage(WrappedModel):
    """Its layers go on from hidden states where there are any."""

    def run(self, inputs: ModelInputs) -> ModelOutput:
        if inputs.hidden is not None:
            every = torch.ones(len(inputs.hidden), dtype=torch.bool, device=inputs.hidden.device)
            inputs = replace(inputs, hidden=None, embeds=inputs.hidden, embed_mask=every)
        return super().run(inputs)


later_stage = variant("models.later_stage", of="models", sentence="Goes on from hidden states of another stage.")(
    around(LaterStage)
)


@variant("models.one_rank", of="models", sentence="Is not split over ranks, and serves one family.")
def one_rank(descriptor: ModelsDescriptor) -> ModelsDescriptor:
    def plan(request: PlanRequest) -> ModelPlan:
        if request.shard.world > 1:
            raise Unsupported("models:one_rank", "is not split over ranks")
        return descriptor.plan(request)

    return replace(descriptor, plan=plan, architectures=frozenset({"LlamaForCausalLM"}))
