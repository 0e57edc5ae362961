"""Each operator against its formula in float64: every dtype and size that is taken, one row and more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from srtkit_conformance.check import Outcome, check, expect
from srtkit_conformance.kits.ops.bench import Bench, check_results, opened
from srtkit_conformance.kits.ops.cases import SIZES, Case, any_case
from srtkit_conformance.kits.ops.gold import EPS, HEADS, Arguments, draw
from srtkit_conformance.kits.ops.tokens import EVERY, parameters
from srtkit_conformance.target import Target

ROWS = (1, 2, 33)
DRAWS = 12
"""Cases of any size for each operator."""


@dataclass(frozen=True)
class Content:
    """The size of what flows through a norm, and the norm's eps."""

    gain: float = 1.0
    eps: float = EPS


PLAIN = (Content(),)
NORMS = (Content(), Content(0.01, 0.5), Content(300.0))
"""An eps that matters, and values whose squares are too large for float16."""


def _values(target: Target, op: str, contents: Sequence[Content] = PLAIN) -> Outcome:
    """Every case that is taken, bound once and called with every number of rows."""
    worst = 0.0
    with opened(target) as bench:
        cases = bench.cases(op)
        if not cases:
            return bench.nothing([op])
        for case in cases:
            rng = target.rng(f"{op} {case.dtype} {case.sizes}")
            bound = bench.bind(case)
            for rows in ROWS:
                for content in contents:
                    given = draw(case, rows, rng, content.gain)
                    worst = max(worst, bench.check(bound, case, given, content.eps))
    return {"cases": len(cases), "worst": round(worst, 3)}


@check(
    "ops.rms_norm",
    level=1,
    clause="ops/1.0: rms_norm (x [T, H], weight [H], eps) -> [T, H]; float32 inside",
    explain="Squares are summed in the dtype of x, eps is left out, added outside of the root, or kept from the first "
    "call, or the tail of an odd size is lost.",
)
def rms_norm(target: Target) -> Outcome:
    return _values(target, "rms_norm", NORMS)


@check(
    "ops.add_rms_norm",
    level=1,
    clause="ops/1.0: add_rms_norm (x, residual, weight, eps) -> [T, H]; residual += x, then rms_norm of it",
    explain="The residual is not updated in place, or the norm is that of x or of the residual before.",
)
def add_rms_norm(target: Target) -> Outcome:
    return _values(target, "add_rms_norm", NORMS)


@check(
    "ops.silu_mul",
    level=1,
    clause="ops/1.0: silu_mul (gate_up [T, 2 I]) -> [T, I]; silu(gate) * up",
    explain="Gate and up are exchanged or taken alternately, or another activation is computed.",
)
def silu_mul(target: Target) -> Outcome:
    return _values(target, "silu_mul", (Content(), Content(8.0)))


@check(
    "ops.rope",
    level=1,
    clause="ops/1.0: rope: the first R of D become x * cos + swap(x) * sin, where swap exchanges the halves",
    explain="Neighbours are paired in place of halves, the halves are those of the head and not of R, or k is "
    "forgotten.",
)
def rope(target: Target) -> Outcome:
    return _values(target, "rope")


@check(
    "ops.norm_rope",
    level=1,
    clause="ops/1.0: norm_rope: rms_norm of each head of q and k, then rope of all of it",
    explain="The rotation comes before the norm, the norm is over all heads together, or k is given the weight of q.",
)
def norm_rope(target: Target) -> Outcome:
    return _values(target, "norm_rope", NORMS)


@check(
    "ops.embed",
    level=1,
    clause="ops/1.2: embed (ids int32 [T], weight [V, H]) -> [T, H]; the rows of the weight that ids name",
    explain="The tail of an odd size is lost, or values are rounded on the way.",
)
def embed(target: Target) -> Outcome:
    return _values(target, "embed")


@check(
    "ops.penalize",
    level=1,
    clause="ops/1.2: penalize: logits above 0 are divided by repetition, others multiplied; those counted lose more",
    explain="The row's number is taken for its slot, what stands in the prompt is counted as output or forgotten, "
    "negative logits are divided, too, or the penalties come before the division.",
)
def penalize(target: Target) -> Outcome:
    return _values(target, "penalize", (Content(3.0),))


@check(
    "ops.argmax",
    level=1,
    clause="ops/1.2: argmax (logits [N, V]) -> int32 [N]; the smallest index of a row's maximum; NaN is above all",
    explain="Of equal logits the last wins, or the one that some thread came to first; zeros of both signs differ; a "
    "comparison with NaN is false; the tail of an odd vocabulary is lost.",
)
def argmax(target: Target) -> Outcome:
    rng = target.rng("argmax")
    with opened(target) as bench:
        cases = bench.cases("argmax")
        for case in cases:
            bound, vocab = bench.bind(case), case.sizes["vocab"]
            for rows in (1, 12):
                given = draw(case, rows, rng, gain=3.0)
                for row, special in enumerate(_specials(vocab)[:rows]):
                    given["logits"][row, list(special)] = torch.tensor(
                        list(special.values()), dtype=given["logits"].dtype
                    )
                bench.check(bound, case, given)
        return {"cases": len(cases)} if cases else bench.nothing(["argmax"])


def _specials(vocab: int) -> list[dict[int, float]]:
    """By row, values at ids: equal ones, infinite ones, NaN."""
    last, inf, nan = vocab - 1, float("inf"), float("nan")
    return [
        {last: 50.0},
        {0: 50.0, last: 50.0},
        {vocab // 2: 50.0, last: 50.0},
        {1: inf, last: inf},
        {2: nan, last: inf},
        {last: nan},
        {3: nan, last: nan},
        dict.fromkeys(range(vocab), -inf),
        {**dict.fromkeys(range(vocab), -1.0), 1: -0.0, last: 0.0},
    ]


@check(
    "ops.sample",
    level=1,
    clause="ops/1.2: sample: the token at which the sum of weights exceeds u of all, of what the filters keep",
    explain="u is of another generator or of the row's place, ranks and ids are mixed up, top-p is taken of all "
    "and not of the top-k, min-p of the sum and not of the largest, or a temperature of 0 divides.",
)
def sample(target: Target) -> Outcome:
    rng = target.rng("sample")
    with opened(target) as bench:
        cases = bench.cases("sample")
        for case in cases:
            given = draw(case, len(EVERY), rng, gain=2.0) | parameters(len(EVERY), rng, EVERY)
            there = bench.there(given)
            bound = bench.bind(case)
            found = bench.call(bound, case, there)
            check_results(found, case, given)
            turned = {name: tensor.flip(0) for name, tensor in there.items()}
            again = bench.call(bound, case, turned)["out"].flip(0)
            same = torch.equal(again, found["out"])
            expect(same, "a row draws another token at another place of the batch", observed=case.dtype)
        return {"cases": len(cases)} if cases else bench.nothing(["sample"])


def _laid_out(there: Arguments, form: str) -> tuple[Arguments, list[torch.Tensor]]:
    """q and k as parts of wider memory, and the parts of it that are neither."""
    q, k = there["q"], there["k"]
    rest = torch.full_like(q[:, :1], 7.0)
    if form == "apart":
        wide_q, wide_k = torch.cat((q, rest), 1), torch.cat((rest, k, rest), 1)
        q, k = wide_q[:, : HEADS[0]], wide_k[:, 1 : 1 + HEADS[1]]
        around = [wide_q[:, HEADS[0] :], wide_k[:, :1], wide_k[:, 1 + HEADS[1] :]]
    else:
        order = (q, k, rest) if form == "q first" else (k, q, rest)
        parts = torch.split(torch.cat(order, 1), [part.shape[1] for part in order], 1)
        around = [parts[2]]
        q, k = parts[:2] if form == "q first" else (parts[1], parts[0])
    return {**there, "q": q, "k": k}, around


@check(
    "ops.rope_strided",
    level=1,
    clause="ops/1.0: rope, norm_rope: q and k may be strided in T; it mutates q and k",
    explain="They are slices of a fused qkv: a copy made contiguous is rotated and dropped, the stride is taken for "
    "heads * head size, or q and k are taken for neighbours where they are not.",
)
def rope_strided(target: Target) -> Outcome:
    rng = target.rng("strides")
    worst, count = 0.0, 0
    with opened(target) as bench:
        cases = [*bench.cases("rope"), *bench.cases("norm_rope")]
        if not cases:
            return bench.nothing(["rope", "norm_rope"])
        for case in cases:
            bound = bench.bind(case)
            for form in ("q first", "k first", "apart"):
                for rows in ROWS:
                    given = draw(case, rows, rng)
                    there, around = _laid_out(bench.there(given), form)
                    worst = max(worst, check_results(bench.call(bound, case, there), case, given))
                    kept = all(bool((one == 7.0).all()) for one in around)
                    expect(kept, f"{case.op} writes beside q and k, which stand {form}", observed=dict(case.sizes))
                    count += 1
    return {"calls": count, "worst": round(worst, 3)}


@check(
    "ops.any_size",
    level=2,
    clause="ops/1.0: the choice for each (op, layer) is made when the layer is built: facts passed accepts",
    explain="A size that accepts took is computed wrongly: a tail that is no multiple of a vector or a tile, or a "
    "size beyond a fixed buffer.",
)
def any_size(target: Target) -> Outcome:
    rng = target.rng("any size")
    worst, count = 0.0, 0
    with opened(target) as bench:
        for op in (one for one in SIZES if one in bench.descriptor.names):
            for _ in range(DRAWS):
                case = any_case(op, target.facts, rng)
                given = draw(case, int(rng.integers(1, 20)), rng)
                if bench.takes(case):
                    worst, count = max(worst, _once(bench, case, given)), count + 1
        return {"cases": count, "worst": round(worst, 3)} if count else bench.nothing()


def _once(bench: Bench, case: Case, given: Arguments) -> float:
    there = bench.there(given)
    return bench.check(bench.ready(case, there), case, given, there=there)
