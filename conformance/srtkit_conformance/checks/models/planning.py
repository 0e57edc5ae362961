"""What a model's plan says, without torch: pure, whole, the same on every rank; what it does not serve it refuses."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import Any

from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import Shard
from srtkit.spec.kv import ITEM_BYTES
from srtkit.spec.models import ModelPlan, ModelsDescriptor, PlanRequest, WeightEntry
from srtkit_conformance.check import Failed, Informational, Outcome, check, expect
from srtkit_conformance.kits.fresh import can_travel, imported_by
from srtkit_conformance.kits.models.configs import TINY, Config, nothing, plan_all, planned, served
from srtkit_conformance.target import Target

WORLDS = (1, 2)


@check(
    "models.no_torch",
    level=0,
    clause="models/1.0: plan is pure and torch-free",
    explain="The planner asks it in a process that has no torch, before any weight is read.",
)
def no_torch(target: Target) -> Outcome:
    if not can_travel(target.descriptor):
        return Informational("its functions cannot be imported by name, so a new process cannot call them")
    found = imported_by(plan_all, target.descriptor)
    expect(not found, "plan imports torch")
    return None


@check(
    "models.plan",
    level=0,
    clause="models/1.0: plan is pure: layer specs, sizes, and the weight map as data",
    explain="Two calls differ, the config is changed, another dtype than the run's is planned, or ranks plan different "
    "sizes: memory and messages are laid out by one plan for all.",
)
def plan(target: Target) -> Outcome:
    descriptor: ModelsDescriptor = target.descriptor
    configs = list(served(descriptor))
    if not configs:
        return nothing(target)
    for config in configs:
        for dtype in ("float32", "bfloat16"):
            request = config.request(dtype)
            asked = deepcopy(request)
            found = planned(descriptor, request)
            expect(request == asked, "plan changes the request", observed=config.name)
            expect(found == planned(descriptor, asked), "two calls plan differently", observed=config.name)
            if found is not None:
                _sound(found, request)
    return {"configs": len(configs)}


def _sound(found: ModelPlan, request: PlanRequest) -> None:
    """The plan is that of the request."""
    said = (found.architecture, found.vocab_size, found.hidden_size)
    keys = request.config
    wanted = (keys["architectures"][0], keys["vocab_size"], keys["hidden_size"])
    expect(said == wanted, "architecture or sizes are not the config's", observed=said, limit=wanted)
    expect(found.dtype == request.dtype, "another dtype than asked for", observed=found.dtype, limit=request.dtype)
    expect(found.max_context > 0, "plans no context", observed=found.max_context)
    layers = {*found.attention, *found.recurrent}
    expect(layers == set(range(len(layers))), "layers are not numbered from 0", observed=sorted(layers))
    _components(found)
    for spec in found.attention.values():
        dtypes = (spec.dtype, spec.kv_dtype)
        expect(dtypes == (request.dtype, request.kv_dtype), "a layer has another dtype than asked for", observed=dtypes)
    for entry in found.weights:
        expect(entry.dtype in ITEM_BYTES, "a weight of an unknown dtype", observed=(entry.parameter, entry.dtype))


def _components(found: ModelPlan) -> None:
    """Every layer has its component, and none is planned for nobody."""
    known = {one.name: one for one in found.components}
    expect(len(known) == len(found.components), "two components have one name", observed=found.components)
    for spec in found.attention.values():
        expect(spec.component in known, "a layer's component is not planned", observed=spec.component, limit=set(known))
        component = known[spec.component]
        expect(component.kind == "paged", "an attention layer's component has no pages", observed=component)
        fits = component.reach == "all" or 0 < spec.window <= component.window
        expect(fits, "a layer sees more tokens than its component keeps", observed=spec.window, limit=component)
    slots = [one.name for one in found.components if one.kind == "slot"]
    wanted = 1 if found.recurrent else 0
    expect(len(slots) == wanted, "recurrent layers have one component of slots", observed=slots, limit=wanted)
    used = {spec.component for spec in found.attention.values()} | set(slots)
    expect(used == set(known), "a component that no layer uses", observed=set(known) - used)


@check(
    "models.weight_map",
    level=0,
    clause="models/1.0: WeightEntry: sources are concatenated along dimension 0, each first sliced per rank along "
    "slice_dim; shape is the parameter's own, per rank",
    explain="A parameter or a source stands there twice, the slices do not make the shape, or a tied parameter names "
    "one that is not there. With one source read twice, another is never read.",
)
def weight_map(target: Target) -> Outcome:
    descriptor: ModelsDescriptor = target.descriptor
    configs = list(served(descriptor))
    for config in configs:
        for world in WORLDS:
            plans = [planned(descriptor, config.request(shard=Shard(rank, world))) for rank in range(world)]
            expect(all(one == plans[0] for one in plans), "ranks plan differently", observed=config.name)
            if plans[0] is not None:
                _whole(plans[0], world, config)
    return {"configs": len(configs)} if configs else nothing(target)


def _whole(found: ModelPlan, world: int, config: Config) -> None:
    """Every parameter once, from sources that make its shape."""
    named = Counter(entry.parameter for entry in found.weights)
    twice = [name for name, count in named.items() if count > 1]
    expect(not twice, f"{config.name}: a parameter stands there twice", observed=twice)
    own = {entry.parameter: entry for entry in found.weights if not entry.tied_to}
    read = Counter(source for entry in own.values() for source in entry.sources)
    twice = [name for name, count in read.items() if count > 1]
    expect(not twice, f"{config.name}: a source is read for two parameters", observed=twice)
    for entry in found.weights:
        made = _made(entry, world)
        expect(made == entry.shape, f"{entry.parameter}: its sources make another shape", observed=made, limit=entry)
        if entry.tied_to:
            other = own.get(entry.tied_to)
            same = other is not None and other.shape == entry.shape
            expect(same, f"{entry.parameter} is tied to what cannot serve in its place", observed=entry.tied_to)


def _made(entry: WeightEntry, world: int) -> tuple[int, ...]:
    """The shape that a rank's slices of the sources make."""
    if not entry.sources or len(entry.sources) != len(entry.source_shapes):
        raise Failed(f"{entry.parameter}: sources and their shapes do not pair", observed=entry)
    slices = []
    for shape in entry.source_shapes:
        dim = entry.slice_dim
        if dim is not None and not (0 <= dim < len(shape) and shape[dim] % world == 0):
            raise Failed(f"{entry.parameter}: cannot be sliced for {world} ranks", observed=shape, limit=dim)
        slices.append(tuple(size // world if axis == dim else size for axis, size in enumerate(shape)))
    return (sum(one[0] for one in slices), *slices[0][1:]) if len({one[1:] for one in slices}) == 1 else ()


@check(
    "models.refusals",
    level=0,
    clause="models/1.0: plan raises Unsupported naming the config key it cannot serve",
    explain="A KeyError or a division by zero comes through, or a size that is missing is replaced by a guess.",
)
def refusals(target: Target) -> Outcome:
    descriptor: ModelsDescriptor = target.descriptor
    configs = list(served(descriptor))
    for config in configs:
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
            left = {name: value for name, value in config.keys.items() if name != key}
            _refused(descriptor, left, key)
        _refused(descriptor, {**config.keys, "num_key_value_heads": 3}, "num_key_value_heads")
    return {"configs": len(configs)} if configs else nothing(target)


def _refused(descriptor: ModelsDescriptor, keys: dict[str, Any], key: str) -> None:
    """Raise `Failed` unless these keys are refused by name."""
    try:
        descriptor.plan(PlanRequest(keys, "float32", "float32"))
    except Unsupported as error:
        expect(key in error.cause, "the refusal does not name the key", observed=error.cause, limit=key)
        return
    except Exception as error:
        raise Failed(f"a config without a good {key} raises another error", observed=repr(error)) from error
    raise Failed(f"a config without a good {key} is planned", observed=keys.get(key, "missing"), limit="Unsupported")


@check(
    "models.unknown",
    level=0,
    clause="models/1.0: architectures: those that it serves; plan raises Unsupported for what it cannot serve",
    explain="An unknown architecture is looked up in a table and raises KeyError, or is planned as another one.",
)
def unknown(target: Target) -> Outcome:
    descriptor: ModelsDescriptor = target.descriptor
    expect(bool(descriptor.architectures), "serves no architecture")
    try:
        found = descriptor.plan(PlanRequest({**TINY, "architectures": ["NoSuchModel"]}, "float32", "float32"))
    except Unsupported:
        return {"architectures": len(descriptor.architectures)}
    except Exception as error:
        raise Failed("an unknown architecture raises another error", observed=repr(error)) from error
    return Informational(f"plans an unknown architecture as {found.architecture}; core never asks for one")
