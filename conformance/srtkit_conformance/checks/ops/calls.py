"""What holds for a call of any operator: what it leaves alone, NaN, few and many rows, none at all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from srtkit.spec.ops import SCHEMAS
from srtkit_conformance.check import Failed, Outcome, check, expect
from srtkit_conformance.kits.ops.bench import PACKED, Bench, check_results, opened
from srtkit_conformance.kits.ops.cases import Case
from srtkit_conformance.kits.ops.gold import Arguments, draw
from srtkit_conformance.target import Target

MANY = 130
FLOWING = {
    **dict.fromkeys(("rms_norm", "add_rms_norm", "linear", "experts"), "x"),
    **dict.fromkeys(("rope", "norm_rope"), "q"),
    **dict.fromkeys(("argmax", "sample", "penalize", "route"), "logits"),
    "silu_mul": "gate_up",
    "embed": "weight",
}
"""The argument that holds the tokens' values."""


def _each(target: Target, body: Callable[[Bench, Case], None]) -> Outcome:
    with opened(target) as bench:
        cases = bench.some()
        for case in cases:
            body(bench, case)
        return {"cases": len(cases)} if cases else bench.nothing()


def _bits(x: Tensor) -> Tensor:
    return x.cpu().contiguous().view(torch.uint8)


@check(
    "ops.untouched",
    level=1,
    clause="ops/1.0: OpSchema.mutates: what the operator mutates, and nothing else",
    explain="An input is used as scratch, or is given back as the result: the layer reads it again.",
)
def untouched(target: Target) -> Outcome:
    rng = target.rng("untouched")

    def body(bench: Bench, case: Case) -> None:
        given = draw(case, 5, rng)
        there = bench.there(given)
        found = bench.call(bench.ready(case, there), case, there)
        for name in given.keys() - set(SCHEMAS[case.op].mutates):
            same = torch.equal(_bits(there[name]), _bits(given[name]))
            expect(same, f"{case.op} changes {name}", observed=case.dtype, limit=SCHEMAS[case.op].mutates)
        if "out" in found:
            taken = {tensor.untyped_storage().data_ptr() for tensor in there.values()}
            out = found["out"] if isinstance(found["out"], tuple) else (found["out"],)
            own = all(one.untyped_storage().data_ptr() not in taken for one in out)
            expect(own, f"the result of {case.op} stands in the memory of an argument", observed=case.dtype)

    return _each(target, body)


@check(
    "ops.results_stay",
    level=1,
    clause="ops/1.0: a call gives a result; what is not in mutates stays",
    explain="Results stand in one buffer of the operator: the next call, with fewer rows too, overwrites the last one.",
)
def results_stay(target: Target) -> Outcome:
    rng = target.rng("results")

    def body(bench: Bench, case: Case) -> None:
        given = draw(case, 5, rng)
        there = bench.there(given)
        bound = bench.ready(case, there)
        found = bench.call(bound, case, there)
        for rows in (5, 2):
            bench.call(bound, case, bench.there(draw(case, rows, rng)))
        try:
            check_results(found, case, given)
        except Failed as error:
            raise Failed(f"a later call changes an earlier result. {error.message}", observed=error.observed) from error

    return _each(target, body)


@check(
    "ops.nan",
    level=1,
    clause="ops/1.0: an operator computes its formula: NaN is not hidden, and stays in its row",
    explain="A comparison or a clamp turns NaN into a number, so that a broken model goes unnoticed; or a row reads "
    "what another one holds.",
)
def nan(target: Target) -> Outcome:
    rng = target.rng("nan")

    def body(bench: Bench, case: Case) -> None:
        given = draw(case, 5, rng)
        spoilt = given[FLOWING[case.op]].select(0, 2)
        (spoilt if case.op == "route" else spoilt.flatten()[1]).fill_(float("nan"))  # a router spoils all of a row
        there = bench.there(given)
        bench.check(bench.ready(case, there), case, given, there=there)

    return _each(target, body)


@check(
    "ops.rows",
    level=1,
    clause="ops/1.0: T rows, each computed by itself",
    explain="Rows beyond a fixed number are left out or computed by a path with another result, or a row at the edge "
    "of a block takes its neighbour's values.",
)
def rows(target: Target) -> Outcome:
    rng = target.rng("rows")

    def body(bench: Bench, case: Case) -> None:
        given = draw(case, MANY, rng)
        there = bench.there(given)
        bound = bench.ready(case, there)
        bench.check(bound, case, given, there=there)
        for row in (0, MANY // 2, MANY - 1):
            bench.check(bound, case, _one_row(case, given, row))

    return _each(target, body)


def _one_row(case: Case, given: Arguments, row: int) -> Arguments:
    whole: tuple[str, ...] = ("weight", "q_weight", "k_weight", "counts", "prompted")
    if SCHEMAS[case.op].weight_side:
        whole = PACKED
    return {name: tensor if name in whole else tensor[row : row + 1] for name, tensor in given.items()}


@check(
    "ops.no_rows",
    level=1,
    clause="ops/1.0: T rows: a step that samples nothing asks the head for none",
    explain="A kernel is launched over an empty grid, or a maximum is taken of nothing.",
)
def no_rows(target: Target) -> Outcome:
    rng = target.rng("no rows")

    def body(bench: Bench, case: Case) -> None:
        given = draw(case, 0, rng)
        there = bench.there(given)
        bench.check(bench.ready(case, there), case, given, there=there)

    return _each(target, body)
