"""The numbers of known families against formulas in float64, and of two ranks against one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import Shard
from srtkit_conformance.check import Informational, Outcome, Refused, check
from srtkit_conformance.kits.models.configs import first_runnable, nothing, runnable
from srtkit_conformance.kits.models.gold import FAMILY
from srtkit_conformance.kits.models.ranks import ThreadGroup, ThreadRank
from srtkit_conformance.kits.models.rig import Making, Rig, device_of, filled, near, random_weights, tokens
from srtkit_conformance.target import Target

LIMIT = 1e-4
"""Relative difference of float32 logits to float64."""
WORLD = 2


@check(
    "models.formulas",
    level=2,
    clause="models/1.0: architecture name → what the model needs, and a module: that of the name, as published",
    explain="Scale, rotation, eps, a bias, the norms of heads, the window of a layer or the tie of the head differ "
    "from the published model.",
)
def formulas(target: Target) -> Outcome:
    worst = 0.0
    configs = [one for one in runnable(target) if one.keys["architectures"][0] in FAMILY]
    if not configs:
        return Informational("the suite has no formulas of its architectures")
    with device_of(target) as device:
        for config in configs:
            rig = filled(target, config, device)
            weights = random_weights(target.descriptor.plan(config.request()), target.rng(config.name))
            ids = tokens(rig.plan, target.rng("ids"), 9)
            wanted = FAMILY[config.keys["architectures"][0]](config.keys, weights).logits(ids)
            found = rig.step((1, ids)).logits
            worst = max(worst, near(found, wanted, f"{config.name}: logits are not those of the formulas", LIMIT))
    return {"configs": len(configs), "worst": worst}


@check(
    "models.ranks",
    level=2,
    clause="models/1.0: per rank: this rank's share; results are summed over the group",
    explain="A linear whose inputs are split is not summed, one that is whole is summed all the same, or heads are "
    "dealt out otherwise than the weight map slices them.",
    seconds=120,
)
def ranks(target: Target) -> Outcome:
    worst, count, refused = 0.0, 0, ""
    configs = first_runnable(target)
    with device_of(target) as device:
        for config in configs:
            group = ThreadGroup(WORLD)
            makings = [Making(shard=Shard(rank, WORLD), communicator=ThreadRank(group, rank)) for rank in range(WORLD)]
            try:
                parts = [filled(target, config, device, making) for making in makings]
            except Unsupported as error:
                refused = error.cause
                continue
            whole = filled(target, config, device)
            ids = tokens(whole.plan, target.rng("ids"), 6)
            wanted = whole.step((1, ids)).logits
            for found in _together(parts, ids):
                worst = max(worst, near(found, wanted, f"{config.name}: {WORLD} ranks give other logits than one"))
            count += 1
    return {"configs": count, "worst": worst} if count else Refused(refused) if refused else nothing(target)


def _together(rigs: Sequence[Rig], ids: list[int]) -> list[Tensor]:
    """Every rank's logits; the first error of any."""

    def one(rig: Rig) -> Tensor:
        communicator = rig.making.communicator
        try:
            with torch.inference_mode():
                return rig.step((1, ids)).logits
        except BaseException:
            if communicator is not None:
                communicator.abort()
            raise

    with ThreadPoolExecutor(len(rigs)) as pool:
        return list(pool.map(one, rigs))
