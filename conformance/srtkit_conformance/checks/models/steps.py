"""Steps of a small model: which logits, the same twice, rows and padding apart, chunks as the whole."""

from __future__ import annotations

import torch

from srtkit_conformance.check import Outcome, check, expect
from srtkit_conformance.kits.models.attention import PADDING
from srtkit_conformance.kits.models.configs import first_runnable, nothing, runnable
from srtkit_conformance.kits.models.rig import Making, check_form, device_of, filled, near, tokens
from srtkit_conformance.target import Target

CHUNKS = ((1,) * 11, (4, 6, 1), (10, 1))
LENGTH = 11


@check(
    "models.logit_rows",
    level=1,
    clause="models/1.0: logits [N, vocab] of the wanted tokens; hidden [T, H]",
    explain="Logits of all tokens are given, those of the last ones only, or sorted; or N = 0 is not served: a step "
    "whose chunks end no prompt wants none.",
)
def logit_rows(target: Target) -> Outcome:
    configs = first_runnable(target)
    with device_of(target) as device:
        for config in configs:
            for dtype in ("float32", "bfloat16"):
                rig = filled(target, config, device, Making(dtype))
                ids = tokens(rig.plan, target.rng("ids"), 9)
                whole = rig.step((1, ids))
                check_form(rig, whole, 9, 9)
                for wanted in ([8], [2, 5, 8], [7, 0, 3], []):
                    rig.forget()
                    output = rig.step((1, ids), wanted=wanted)
                    check_form(rig, output, len(wanted), 9)
                    limit = 2e-5 if dtype == "float32" else 2e-2
                    near(output.logits, whole.logits[wanted], f"logits of tokens {wanted} are others", limit)
    return {"configs": len(configs)} if configs else nothing(target)


@check(
    "models.repeats",
    level=1,
    clause="models/1.0: run: one forward over the step's tokens: the same inputs give the same outputs",
    explain="Something of an earlier step is kept, in the model or in what it returns, or an input is used as scratch.",
)
def repeats(target: Target) -> Outcome:
    configs = first_runnable(target)
    with device_of(target) as device:
        for config in configs:
            rig = filled(target, config, device)
            ids = tokens(rig.plan, target.rng("ids"), 7)
            inputs = rig.inputs([(1, ids)])
            given = [tensor.clone() for tensor in (inputs.ids, inputs.positions, inputs.logit_rows)]
            first = rig.run(inputs)
            logits, hidden = first.logits.clone(), first.hidden.clone()
            rig.forget()
            rig.step((1, tokens(rig.plan, target.rng("other ids"), 7)))
            same = torch.equal(first.logits, logits) and torch.equal(first.hidden, hidden)
            expect(same, f"{config.name}: a later step changes an earlier output")
            for tensor, before in zip((inputs.ids, inputs.positions, inputs.logit_rows), given, strict=True):
                expect(torch.equal(tensor, before), f"{config.name}: an input is changed")
            rig.forget()
            again = rig.step((1, ids))
            same = torch.equal(again.logits, logits) and torch.equal(again.hidden, hidden)
            expect(same, f"{config.name}: the same step gives another output")
    return {"configs": len(configs)} if configs else nothing(target)


@check(
    "models.padding",
    level=1,
    clause="models/1.0: one forward over the step's tokens; padding tokens change no other's result",
    explain="Something is computed over all tokens of a step: a mean, a maximum, a scale.",
)
def padding(target: Target) -> Outcome:
    worst = 0.0
    configs = first_runnable(target)
    with device_of(target) as device:
        for config in configs:
            rig = filled(target, config, device)
            ids = tokens(rig.plan, target.rng("ids"), 5)
            alone = rig.step((1, ids)).logits
            for pads in (1, 7):
                rig.forget()
                rows = ((1, ids), *((PADDING, [0]) for _ in range(pads)))
                logits = rig.step(*rows, wanted=range(5)).logits
                worst = max(worst, near(logits, alone, f"{config.name}: {pads} padding tokens change other tokens"))
    return {"worst": worst} if configs else nothing(target)


@check(
    "models.chunks",
    level=1,
    clause="models/1.0: ModelInputs.positions [p, T]: where each token stands; attention goes through srtkit::attend",
    explain="Positions are counted from the start of the step, or something besides attention needs the tokens of "
    "earlier steps.",
)
def chunks(target: Target) -> Outcome:
    worst = 0.0
    configs = runnable(target)
    with device_of(target) as device:
        for config in configs:
            rig = filled(target, config, device)
            ids = tokens(rig.plan, target.rng("ids"), LENGTH)
            whole = rig.step((1, ids)).logits
            for lengths in CHUNKS:
                rig.forget()
                starts = [sum(lengths[:index]) for index in range(len(lengths))]
                parts = [rig.step((1, ids[start : start + n])) for start, n in zip(starts, lengths, strict=True)]
                what = f"{config.name}: a prompt in chunks of {lengths} gives other logits than the whole"
                worst = max(worst, near(torch.cat([one.logits for one in parts]), whole, what))
    return {"configs": len(configs), "worst": worst} if configs else nothing(target)


@check(
    "models.rows",
    level=1,
    clause="models/1.0: one forward over the step's tokens, of any number of sequences",
    explain="Positions or masks are made for one sequence: in a mixed step rows stand at different places.",
)
def rows(target: Target) -> Outcome:
    worst = 0.0
    configs = first_runnable(target)
    with device_of(target) as device:
        for config in configs:
            rig = filled(target, config, device)
            rng = target.rng("ids")
            sequences = {number: tokens(rig.plan, rng, 8) for number in (1, 2, 3)}
            alone = torch.cat([rig.step((number, ids)).logits[5:] for number, ids in sequences.items()])
            rig.forget()
            for number, ids in sequences.items():
                rig.step((number, ids[:5]))
            order = (1, 2, 3)
            together = rig.step(*((number, sequences[number][5:]) for number in order)).logits
            worst = max(worst, near(together, alone, f"{config.name}: rows in one step give other logits than alone"))
    return {"worst": worst} if configs else nothing(target)
