"""Filling a model's parameters: the weight map as requests, the loader's answers as copies.

Knows concatenation and the slice of a rank. Knows no storage form (the loader does) and no packing
(the model's `pack` follows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING

from srtkit.config.kv_scales import STORED
from srtkit.spec.errors import LoaderError, PluginBroken
from srtkit.spec.facts import Shard
from srtkit.spec.model_loader import ModelLoader, WeightInfo, WeightRequest
from srtkit.spec.models import Model, ModelPlan, WeightEntry

if TYPE_CHECKING:
    from torch import Tensor

# Called as (done, total), in bytes, while weights are loaded.
Progress = Callable[[int, int], None]
PART = "model_loader"


def fill_weights(
    model: Model, plan: ModelPlan, loader: ModelLoader, shard: Shard, progress: Progress | None = None
) -> None:
    """Read every parameter of this rank into `model.slots()`, cast to the slot's dtype and device.

    `progress(done, total)` counts bytes of parameters. Raises `LoaderError` when the source lacks a weight, has
    one of another shape, or has one that the model does not know; nothing is read in these cases.
    """
    stored = {info.name: info for info in loader.index()}
    _check_names(plan, stored)
    targets = _targets(model.slots(), plan, stored, shard)
    total, done = sum(target.nbytes for target in targets.values()), 0
    for request, tensor in loader.read(tuple(targets)):
        target = targets.pop(request, None)
        if target is None:
            raise PluginBroken(PART, f"gave {request.name}, which was not asked for or given before")
        if tensor.shape != target.shape:
            raise PluginBroken(PART, f"gave {request} as {tuple(tensor.shape)}, wanted {tuple(target.shape)}")
        target.copy_(tensor)
        done += target.nbytes
        if progress is not None:
            progress(done, total)
    if targets:
        raise PluginBroken(PART, f"never gave {_some(request.name for request in targets)}")


def stored_scales(loader: ModelLoader) -> dict[str, float]:
    """The scales of FP8 KV that stand among the weights, by name. Raises `LoaderError` for those of single heads."""
    scales = [info for info in loader.index() if STORED.fullmatch(info.name)]
    if heads := [info.name for info in scales if prod(info.shape) > 1]:
        raise LoaderError(PART, f"scales of single heads are not read: {_some(heads)}")
    found = loader.read([WeightRequest(info.name, shape=info.shape) for info in scales])
    return {request.name: tensor.item() for request, tensor in found}


def _check_names(plan: ModelPlan, stored: Mapping[str, WeightInfo]) -> None:
    """Everything wanted is stored, everything stored is known. A source without an index makes any weight."""
    if not stored:
        return
    known = {name for entry in plan.weights for name in entry.sources}
    wanted = {name for entry in plan.weights if not entry.tied_to for name in entry.sources}
    if missing := wanted - stored.keys():
        cause = f"{len(missing)} weights of {plan.architecture} are not in the source: {_some(missing)}"
        raise LoaderError(PART, cause, "the download is incomplete, or config and weights are of different models")
    spare = (name for name in stored.keys() - known if not name.endswith(plan.ignored))
    if extra := {name for name in spare if not STORED.fullmatch(name)}:
        cause = f"{len(extra)} stored weights are unknown to {plan.architecture}: {_some(extra)}"
        remedy = "config and weights are of different models, or the weights are quantised in a form that is not read"
        raise LoaderError(PART, cause, remedy)


def _targets(
    slots: Mapping[str, Tensor], plan: ModelPlan, stored: Mapping[str, WeightInfo], shard: Shard
) -> dict[WeightRequest, Tensor]:
    """What to read, and the part of a parameter that each reading fills."""
    targets: dict[WeightRequest, Tensor] = {}
    for entry in plan.weights:
        if entry.tied_to:
            continue
        slot = slots.get(entry.parameter)
        if slot is None or tuple(slot.shape) != entry.shape:
            found = "no such slot" if slot is None else f"a slot of {tuple(slot.shape)}"
            raise PluginBroken(f"models:{plan.architecture}", f"{entry.parameter} {entry.shape} has {found}")
        row = 0
        for name, shape in zip(entry.sources, entry.source_shapes, strict=True):
            info = stored.get(name)
            if info is not None and info.shape != shape:
                cause = f"{name} is stored as {info.shape}, the config asks for {shape}"
                raise LoaderError(PART, cause, "check the config")
            request = _request(entry, name, shape, shard)
            if request in targets:
                raise PluginBroken(f"models:{plan.architecture}", f"two parameters want the same part of {name}")
            rows = request.stop - request.start if request.dim == 0 else shape[0]
            targets[request] = slot.narrow(0, row, rows)
            row += rows
        if row != entry.shape[0]:
            raise PluginBroken(f"models:{plan.architecture}", f"{entry.parameter} has {entry.shape[0]} rows, not {row}")
    return targets


def _request(entry: WeightEntry, name: str, shape: tuple[int, ...], shard: Shard) -> WeightRequest:
    """This rank's slice of one source."""
    if entry.slice_dim is None or shard.world == 1:
        return WeightRequest(name, shape=shape)
    size = shape[entry.slice_dim] // shard.world
    return WeightRequest(name, entry.slice_dim, shard.rank * size, (shard.rank + 1) * size, shape)


def _some(names: Iterable[str]) -> str:
    """The first few names, sorted."""
    listed = sorted(names)
    return ", ".join(listed[:5]) + (" …" if len(listed) > 5 else "")
