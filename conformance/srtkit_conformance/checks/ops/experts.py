"""Operators of mixtures of experts: which experts a row gets, and what they say; whose their weights are."""

from __future__ import annotations

import torch

from srtkit_conformance.check import Outcome, check, expect
from srtkit_conformance.kits.ops.bench import opened
from srtkit_conformance.kits.ops.gold import draw
from srtkit_conformance.target import Target

ROWS = (1, 2, 33)
EXPERTS = ("experts",)


@check(
    "ops.route",
    level=1,
    clause="ops/1.3: route: the k largest of each row's float32 softmax, made to sum to 1 if `renormalised`",
    explain="The softmax is over the chosen alone where it is to be over all, is rounded to the dtype of the logits, "
    "or of equal logits one is chosen twice.",
)
def route(target: Target) -> Outcome:
    worst = 0.0
    with opened(target) as bench:
        cases = bench.cases("route")
        for case in cases:
            rng = target.rng(f"route {case.dtype} {case.sizes}")
            bound = bench.bind(case)
            for rows in ROWS:
                given = draw(case, rows, rng, gain=3.0)
                given["logits"][0, : case.sizes["per_token"] + 1] = 20.0
                worst = max(worst, bench.check(bound, case, given))
        return {"cases": len(cases), "worst": round(worst, 3)} if cases else bench.nothing(["route"])


@check(
    "ops.experts",
    level=1,
    clause="ops/1.3: experts: the weighted sum of what a token's experts make of it: down @ (silu(gate) * up)",
    explain="Gate and up are exchanged or taken alternately, weights are of another place, numbers of 64 bits are read "
    "as 32, or an expert that nobody asked for spoils a sum.",
)
def experts(target: Target) -> Outcome:
    worst = 0.0
    with opened(target) as bench:
        cases = bench.cases("experts")
        for case in cases:
            rng = target.rng(f"experts {case.dtype} {case.sizes}")
            for rows in ROWS:
                given = draw(case, rows, rng)
                there = bench.there(given)
                bound = bench.ready(case, there)
                for integers in (torch.int32, torch.int64):
                    there["experts"] = there["experts"].to(integers)
                    worst = max(worst, bench.check(bound, case, given, there=there))
        return {"cases": len(cases), "worst": round(worst, 3)} if cases else bench.nothing(EXPERTS)


@check(
    "ops.experts_weights",
    level=1,
    clause="ops/1.3: ExpertsOp.pack: take the loaded weights; whether the given tensors themselves stay in use",
    explain="The second pack is ignored, layers of equal sizes share what was packed last, the given weights are "
    "reordered in place, or whether they stay in use is not as it says: the caller drops what is still needed.",
)
def experts_weights(target: Target) -> Outcome:
    rng = target.rng("experts' weights")
    kept = 0
    with opened(target) as bench:
        cases = bench.some(EXPERTS)
        if not cases:
            return bench.nothing(EXPERTS)
        for case in cases:
            first, second = bench.bind_experts(case), bench.bind_experts(case)
            for _ in range(2):
                layers = [draw(case, 3, rng) for _ in range(2)]
                for op, given in zip((first, second), layers, strict=True):
                    there = bench.there(given)
                    said = op.pack(there["gate_up"], there["down"])
                    same = all(torch.equal(there[name].cpu(), given[name]) for name in ("gate_up", "down"))
                    expect(same, "the weights that it was given have changed", observed=case.dtype)
                for op, given in zip((first, second), layers, strict=True):
                    bench.check(op, case, given)
            before = bench.call(second, case, there)["out"].clone()
            there["down"].neg_()
            changed = not torch.equal(bench.call(second, case, there)["out"], before)
            expect(changed == said, "whether the weights stay in use is not as it says", observed=changed, limit=said)
            kept += said
        return {"cases": len(cases), "kept": kept}
