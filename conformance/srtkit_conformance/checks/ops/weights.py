"""Operators that own a weight: what they compute, packing again, whose weight it is, and whether it stays."""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.ops import SCHEMAS, ExpertsOp, WeightOp
from srtkit_conformance.check import Outcome, check, expect
from srtkit_conformance.kits.ops.bench import opened
from srtkit_conformance.kits.ops.gold import draw
from srtkit_conformance.target import Target

ROWS = (1, 2, 33)
LINEAR = ("linear",)


@check(
    "ops.bind",
    level=1,
    clause="ops/1.0: bind(facts): the callable for a layer; for a weight-side op a new WeightOp",
    explain="A linear is bound as a function of three tensors, or a class is given in place of an object.",
)
def bind(target: Target) -> Outcome:
    count = 0
    with opened(target) as bench:
        for case in bench.some():
            found = bench.bind(case)
            weight_side = isinstance(found, ExpertsOp if case.op == "experts" else WeightOp)
            wanted = "an operator with a weight" if SCHEMAS[case.op].weight_side else "a function"
            right = weight_side == SCHEMAS[case.op].weight_side and callable(found)
            expect(right, f"{case.op} is bound to something else", observed=type(found).__name__, limit=wanted)
            if weight_side:
                expect(bench.bind(case) is not found, f"two layers get the same {case.op}", observed=case.op)
            count += 1
        return {"operators": count} if count else bench.nothing()


@check(
    "ops.linear",
    level=1,
    clause="ops/1.0: linear (x [T, in]) -> [T, out]; weight [out, in], bias [out] or None",
    explain="The bias is left out, the weight is transposed once too often, or outputs beyond a whole tile are lost.",
)
def linear(target: Target) -> Outcome:
    worst = 0.0
    with opened(target) as bench:
        cases = bench.cases("linear")
        if not cases:
            return bench.nothing(LINEAR)
        for case in cases:
            rng = target.rng(f"linear {case.dtype} {case.sizes}")
            for biased in (True, False):
                given = draw(case, 1, rng)
                if not biased:
                    del given["bias"]
                bound = bench.ready(case, bench.there(given))
                for rows in ROWS:
                    given["x"] = draw(case, rows, rng)["x"]
                    worst = max(worst, bench.check(bound, case, given))
    return {"cases": len(cases), "worst": round(worst, 3)}


@check(
    "ops.packed_again",
    level=1,
    clause="ops/1.0: pack: take the loaded weight in the form the op wants; called again after a reload",
    explain="The second pack is ignored, keeps the bias of the first, or packs the form that it made before.",
)
def packed_again(target: Target) -> Outcome:
    rng = target.rng("packed again")
    with opened(target) as bench:
        cases = bench.some(LINEAR)
        if not cases:
            return bench.nothing(LINEAR)
        for case in cases:
            bound = bench.bind_weight(case)
            for biased in (True, False, True):
                given = draw(case, 3, rng)
                if not biased:
                    del given["bias"]
                there = bench.there(given)
                bound.pack(there["weight"], there.get("bias"))
                bench.check(bound, case, given, there=there)
        return {"cases": len(cases)}


@check(
    "ops.own_weight",
    level=1,
    clause="ops/1.0: for a weight-side op a new WeightOp: it owns its weight",
    explain="Layers of equal sizes share what was packed last: a cache by sizes, or an attribute of the class.",
)
def own_weight(target: Target) -> Outcome:
    rng = target.rng("own weight")
    with opened(target) as bench:
        cases = bench.some(LINEAR)
        if not cases:
            return bench.nothing(LINEAR)
        for case in cases:
            layers = [draw(case, 3, rng) for _ in range(3)]
            bound = [bench.bind_weight(case) for _ in layers]
            for one, given in zip(bound, layers, strict=True):
                there = bench.there(given)
                one.pack(there["weight"], there["bias"])
            for one, given in zip(bound, layers, strict=True):
                bench.check(one, case, given)
        return {"cases": len(cases)}


@check(
    "ops.given_weight",
    level=1,
    clause="ops/1.0: pack: take the loaded weight; the caller drops its own reference",
    explain="The weight is packed in its own memory, or scaled there: a tied head's weight is the embedding's, too.",
)
def given_weight(target: Target) -> Outcome:
    rng = target.rng("given weight")
    with opened(target) as bench:
        cases = bench.some(LINEAR)
        if not cases:
            return bench.nothing(LINEAR)
        for case in cases:
            given = draw(case, 3, rng)
            there = bench.there(given)
            bench.call(bench.ready(case, there), case, there)
            for name in ("weight", "bias"):
                kept = torch.equal(there[name].cpu(), given[name])
                expect(kept, f"the {name} that it was given has changed", observed=case.dtype)
        return {"cases": len(cases)}


@check(
    "ops.keeps_weight",
    level=1,
    clause="ops/1.0: keeps_weight: whether the given weight tensor itself stays in use after pack",
    explain="No, and yet it is used: the caller drops it, and its memory is counted as free. Yes, and yet a copy is "
    "used: the weight stands in memory twice.",
)
def keeps_weight(target: Target) -> Outcome:
    rng = target.rng("keeps weight")
    kept = 0
    with opened(target) as bench:
        cases = bench.some(LINEAR)
        if not cases:
            return bench.nothing(LINEAR)
        for case in cases:
            given = draw(case, 3, rng)
            there = bench.there(given)
            bound = bench.bind_weight(case)
            bound.pack(there["weight"], there["bias"])
            before: Tensor = bound(there["x"]).clone()
            there["weight"].neg_()
            changed = not torch.equal(bound(there["x"]), before)
            said = bound.keeps_weight
            expect(changed == said, "whether the weight stays in use is not as it says", observed=changed, limit=said)
            kept += said
        return {"cases": len(cases), "kept": kept}
