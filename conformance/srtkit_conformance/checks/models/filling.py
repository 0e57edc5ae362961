"""Parameters: a slot for each, filled and packed, and again after a reload."""

from __future__ import annotations

import torch

from srtkit.spec.layers import DTYPES
from srtkit_conformance.check import Failed, Outcome, check, expect
from srtkit_conformance.kits.models.configs import Config, nothing, runnable
from srtkit_conformance.kits.models.rig import Making, Rig, device_of, filled, form, make, near, random_weights, tokens
from srtkit_conformance.target import Target


@check(
    "models.slots",
    level=1,
    clause="models/1.0: slots: parameters to fill, by the names of the weight map",
    explain="A parameter of the module is in no slot and stays as it was allocated, two names share memory, or shape "
    "and dtype are not those of the map.",
)
def slots(target: Target) -> Outcome:
    configs = runnable(target)
    if not configs:
        return nothing(target)
    with device_of(target) as device:
        for config in configs:
            for dtype in ("float32", "bfloat16"):
                _fits(make(target, config, device, Making(dtype)), config)
    return {"configs": len(configs)}


def _fits(rig: Rig, config: Config) -> None:
    """Every untied entry has a slot of its own."""
    found = rig.model.slots()
    wanted = {entry.parameter: entry for entry in rig.plan.weights if not entry.tied_to}
    missing, more = wanted.keys() - found.keys(), found.keys() - {entry.parameter for entry in rig.plan.weights}
    expect(not missing, f"{config.name}: parameters without a slot", observed=sorted(missing))
    expect(not more, f"{config.name}: slots that the weight map does not fill", observed=sorted(more))
    for name, entry in wanted.items():
        slot = found[name]
        right = tuple(slot.shape) == entry.shape and slot.dtype == DTYPES[entry.dtype] and slot.device == rig.device
        expect(right, f"the slot of {name} is another than planned", observed=form(slot), limit=entry.shape)
    for number, name in enumerate(wanted):
        found[name].fill_(number)
    for number, name in enumerate(wanted):
        expect(bool((found[name] == number).all()), "two parameters share memory", observed=name)


@check(
    "models.filled",
    level=1,
    clause="models/1.0: the weight map fills the model; pack lets weight-side ops take their weights",
    explain="A parameter that no entry fills holds what was in memory (here NaN), or a linear is left out of pack.",
)
def filled_whole(target: Target) -> Outcome:
    configs = runnable(target)
    with device_of(target) as device:
        for config in configs:
            for keeps in (False, True):
                rig = filled(target, config, device, Making(keeps=keeps))
                logits = rig.step((1, tokens(rig.plan, target.rng("ids"), 5))).logits
                finite = bool(torch.isfinite(logits).all())
                expect(finite, f"{config.name}: logits are not finite", observed=f"keeps_weight {keeps}")
    return {"configs": len(configs)} if configs else nothing(target)


@check(
    "models.reload",
    level=1,
    clause="models/1.0: pack: after loading, and again after a reload; slots allocates again what pack dropped",
    explain="Slots that pack dropped are missing, or something made of the first weights is kept: a packed linear, "
    "a tied head, a scale.",
)
def reload(target: Target) -> Outcome:
    configs = runnable(target)
    with device_of(target) as device:
        for config in configs:
            for keeps in (False, True):
                making = Making(keeps=keeps)
                rig, fresh = filled(target, config, device, making), make(target, config, device, making)
                weights = random_weights(target.descriptor.plan(config.request()), target.rng("other weights"))
                for one in (rig, fresh):
                    one.fill(weights)
                ids = tokens(rig.plan, target.rng("ids"), 6)
                wanted = fresh.step((1, ids)).logits
                try:
                    near(rig.step((1, ids)).logits, wanted, "after a reload a model is another than a new one")
                except Failed as error:
                    raise Failed(f"{config.name}: {error.message}", observed=error.observed) from error
    return {"configs": len(configs)} if configs else nothing(target)
