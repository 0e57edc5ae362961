"""What a model may be given or asked for beside ids: embeddings, hidden states, taps. It does it, or refuses."""

from __future__ import annotations

import re

import torch

from srtkit.spec.errors import Unsupported
from srtkit_conformance.check import Outcome, Refused, check, expect
from srtkit_conformance.kits.models.configs import first_runnable, nothing
from srtkit_conformance.kits.models.gold import embedding_scale
from srtkit_conformance.kits.models.rig import Making, Rig, device_of, filled, near, random_weights, tokens
from srtkit_conformance.target import Target


def _embedded(rig: Rig, ids: list[int], scale: float) -> torch.Tensor:
    """What goes into the first layer, from the first parameter of the map that is [vocab, hidden]."""
    shape = (rig.plan.vocab_size, rig.plan.hidden_size)
    entry = next(one for one in rig.plan.weights if one.shape == shape and not one.tied_to)
    return rig.model.slots()[entry.parameter][torch.tensor(ids, device=rig.device)] * scale


@check(
    "models.embeds",
    level=1,
    clause="models/1.0: embeds [T, H] with embed_mask bool [T] replaces embeddings",
    explain="The mask is taken the other way round, embeds are added, or they are ignored: a picture is not seen, and "
    "nobody is told. They are final: a model that scales its embeddings does not scale these. A model without them "
    "raises Unsupported.",
)
def embeds(target: Target) -> Outcome:
    configs = first_runnable(target)
    with device_of(target) as device:
        for config in configs:
            rig, scale = filled(target, config, device, Making(keeps=True)), embedding_scale(config.keys)
            rng = target.rng("ids")
            ids, others = tokens(rig.plan, rng, 7), tokens(rig.plan, rng, 7)
            mask = torch.tensor([False, True, True, False, True, False, False], device=device)
            mixed = [other if m else one for one, other, m in zip(ids, others, mask.tolist(), strict=True)]
            wanted = {"some": rig.step((1, mixed)).logits}
            rig.forget()
            wanted["none"] = rig.step((1, ids)).logits
            for name, masked in (("some", mask), ("none", torch.zeros_like(mask))):
                rig.forget()
                inputs = rig.inputs([(1, ids)])
                inputs.embeds, inputs.embed_mask = _embedded(rig, others, scale), masked
                try:
                    found = rig.run(inputs).logits
                except Unsupported as error:
                    return Refused(error.cause)
                near(found, wanted[name], f"{config.name}: with {name} of the embeddings replaced, logits are others")
    return {"configs": len(configs)} if configs else nothing(target)


@check(
    "models.hidden",
    level=1,
    clause="models/1.0: hidden [T, H] of the stage before",
    explain="A model of one stage ignores them and begins anew. It must raise Unsupported.",
)
def hidden(target: Target) -> Outcome:
    configs = first_runnable(target)
    refused = ""
    with device_of(target) as device:
        for config in configs:
            rig = filled(target, config, device)
            ids = tokens(rig.plan, target.rng("ids"), 4)
            before = rig.step((1, ids)).logits.clone()
            rig.forget()
            inputs = rig.inputs([(1, ids)])
            inputs.hidden = torch.ones(4, rig.plan.hidden_size, device=device)
            try:
                found = rig.run(inputs).logits
            except Unsupported as error:
                refused = error.cause
                continue
            expect(not torch.equal(found, before), f"{config.name}: hidden states of another stage are ignored")
    return Refused(refused) if refused else {"configs": len(configs)} if configs else nothing(target)


@check(
    "models.taps",
    level=1,
    clause="models/1.0: taps by layer where asked for: hidden states of the layers a speculator asked for at build",
    explain="A tap is a view of a residual that later layers change, or the states of another layer. A model without "
    "taps raises Unsupported at build.",
)
def taps(target: Target) -> Outcome:
    configs = first_runnable(target)
    with device_of(target) as device:
        for config in configs:
            plain = filled(target, config, device)
            last = max({*plain.plan.attention, *plain.plan.recurrent})
            try:
                rig = filled(target, config, device, Making(taps=(0, last)))
            except Unsupported as error:
                return Refused(error.cause)
            ids = tokens(rig.plan, target.rng("ids"), 6)
            output = rig.step((1, ids))
            near(output.logits, plain.step((1, ids)).logits, f"{config.name}: with taps logits are others")
            expect(not plain.step((1, ids)).taps, f"{config.name}: taps that nobody asked for")
            expect(
                output.taps.keys() == {0, last}, "taps of other layers", observed=sorted(output.taps), limit=(0, last)
            )
            first = {index: tap.clone() for index, tap in output.taps.items()}
            for index, tap in first.items():
                shape = (len(ids), rig.plan.hidden_size)
                expect(tap.shape == shape, f"tap {index} is not [T, H]", observed=tuple(tap.shape), limit=shape)
            _of_their_layers(target, rig, ids, first, last)
    return {"configs": len(configs)} if configs else nothing(target)


def _layer(name: str) -> int:
    """The layer of a stored weight: the first number in its name; -1 for none."""
    found = re.search(r"\.(\d+)\.", name)
    return int(found.group(1)) if found else -1


def _of_their_layers(target: Target, rig: Rig, ids: list[int], first: dict[int, torch.Tensor], last: int) -> None:
    """With other weights in the last layer, the last tap changes and the first does not."""
    plan = target.descriptor.plan
    config = next(one for one in first_runnable(target) if one.keys["architectures"] == [rig.plan.architecture])
    weights = random_weights(plan(config.request()), target.rng(config.name))
    others = random_weights(plan(config.request()), target.rng("other weights"))
    rig.fill({name: others[name] if _layer(name) == last else one for name, one in weights.items()})
    output = rig.step((1, ids))
    near(output.taps[0], first[0], "the first layer's tap depends on the last layer")
    changed = float((output.taps[last] - first[last]).norm() / first[last].norm())
    expect(changed > 1e-3, "the last layer's tap does not depend on its layer", observed=changed)
