"""Models that plan wrongly, or do not say what they cannot serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from srtkit.spec.errors import Unsupported
from srtkit.spec.models import ModelPlan, ModelsDescriptor, PlanRequest
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.models.wrap import planning

Plan = Callable[[PlanRequest], ModelPlan]


def _by_torch(inner: Plan, request: PlanRequest) -> ModelPlan:
    import torch

    torch.empty(0)
    return inner(request)


@mutant("models.plans_by_torch", of="models", sentence="plan imports torch.", killed_by=("models.no_torch",))
def plans_by_torch(descriptor: ModelsDescriptor) -> ModelsDescriptor:
    return replace(descriptor, plan=partial(_by_torch, descriptor.plan))


def _stored_dtype(plan: ModelPlan, request: PlanRequest) -> ModelPlan:
    specs = {index: replace(spec, kv_dtype="float16") for index, spec in plan.attention.items()}
    return replace(plan, attention=specs)


stored_dtype = mutant(
    "models.kv_in_float16",
    of="models",
    sentence="Plans KV in float16, whatever the run stores.",
    killed_by=("models.plan",),
)(planning(_stored_dtype))


def _narrow(plan: ModelPlan, request: PlanRequest) -> ModelPlan:
    windows = [replace(one, window=one.window - 1) if one.window else one for one in plan.components]
    return replace(plan, components=tuple(windows))


narrow_component = mutant(
    "models.narrow_component",
    of="models",
    sentence="Plans to keep fewer tokens of a window than its layers see.",
    killed_by=("models.plan",),
    note="one check holds the plan: this is of its components, kv_in_float16 of its specs",
)(planning(_narrow))


def _stateless(plan: ModelPlan, request: PlanRequest) -> ModelPlan:
    return replace(plan, components=tuple(one for one in plan.components if one.kind == "paged"))


stateless = mutant(
    "models.stateless",
    of="models",
    sentence="Plans recurrent layers and no slots for their states.",
    killed_by=("models.plan",),
    note="as narrow_component",
)(planning(_stateless))


def _twice(plan: ModelPlan, request: PlanRequest) -> ModelPlan:
    def keyed(name: str) -> str:
        return name.replace(".v_proj.", ".k_proj.")

    weights = [replace(entry, sources=tuple(map(keyed, entry.sources))) for entry in plan.weights]
    return replace(plan, weights=tuple(weights))


key_for_value = mutant(
    "models.key_for_value",
    of="models",
    sentence="Reads the key projection where the value projection belongs.",
    killed_by=("models.weight_map",),
)(planning(_twice))


@mutant(
    "models.raises_key_error",
    of="models",
    sentence="A missing key raises KeyError.",
    killed_by=("models.refusals",),
)
def raises_key_error(descriptor: ModelsDescriptor) -> ModelsDescriptor:
    def plan(request: PlanRequest) -> ModelPlan:
        request.config["vocab_size"]
        return descriptor.plan(request)

    return replace(descriptor, plan=plan)


@mutant(
    "models.looks_up",
    of="models",
    sentence="An unknown architecture raises KeyError.",
    killed_by=("models.unknown",),
)
def looks_up(descriptor: ModelsDescriptor) -> ModelsDescriptor:
    table = dict.fromkeys(descriptor.architectures, descriptor.plan)
    return replace(descriptor, plan=lambda request: table[request.config["architectures"][0]](request))


def _scaled(plan: ModelPlan, request: PlanRequest) -> ModelPlan:
    specs = {index: replace(spec, scale=1 / spec.head_dim) for index, spec in plan.attention.items()}
    return replace(plan, attention=specs)


other_scale = mutant(
    "models.other_scale",
    of="models",
    sentence="Divides scores by the head size in place of its root.",
    killed_by=("models.formulas",),
    note="consistent with itself: only the formulas know it, as with any wrong constant",
)(planning(_scaled))


@mutant(
    "models.without_windows",
    of="models",
    sentence="Reads a window and plans layers without.",
    killed_by=("models.formulas",),
)
def without_windows(descriptor: ModelsDescriptor) -> ModelsDescriptor:
    def plan(request: PlanRequest) -> ModelPlan:
        found = descriptor.plan(request)
        return replace(found, attention={index: replace(one, window=0) for index, one in found.attention.items()})

    return replace(descriptor, plan=plan)


@mutant(
    "models.guesses",
    of="models",
    sentence="Takes one layer where the config does not say how many.",
    killed_by=("models.refusals",),
    note="a guess in place of an error of another kind",
)
def guesses(descriptor: ModelsDescriptor) -> ModelsDescriptor:
    def plan(request: PlanRequest) -> ModelPlan:
        try:
            return descriptor.plan(request)
        except Unsupported:
            if "num_hidden_layers" in request.config:
                raise
            return descriptor.plan(replace(request, config={**request.config, "num_hidden_layers": 1}))

    return replace(descriptor, plan=plan)
