"""Everything that is not declared must be refused, at the latest when the plan is filled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from srtkit.spec.errors import Unsupported
from srtkit_conformance.check import Failed, Outcome, check
from srtkit_conformance.kits.attention.case import rows_of
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step, ask
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_conformance.kits.numeric.refusals import refusal, together
from srtkit_conformance.target import Target

DTYPES = ("float64", "bfloat16", "float16", "float32")
KV_DTYPES = ("float8_e4m3fn", "float8_e4m3fnuz", "int8", "float64")
HEAD_DIMS = (64, 80, 96, 128, 256, 40, 72, 512, 1032)
PAGE_SIZES = (1, 7, 16, 32, 64, 128, 256, 512)
RATIOS_TRIED = 512
ROWS = rows_of((20, 1), (0, 9))
CLAUSE = "attention/1.0: what is not declared is refused with Unsupported, never computed wrongly"


@check(
    "attention.refusals.dtypes",
    level=1,
    clause=CLAUSE,
    explain="The backend is built for a dtype that it does not declare, and computes in another.",
)
def dtypes(target: Target) -> Outcome:
    """Undeclared dtypes of q and of stored KV."""
    harness = Harness(target)
    asked = [({"dtype": name}, f"dtype {name}") for name in DTYPES if name not in harness.can.dtypes]
    asked += [({"kv_dtype": name}, f"KV dtype {name}") for name in KV_DTYPES if name not in harness.can.kv_dtypes]
    return _ask(harness, asked)


@check(
    "attention.refusals.shapes",
    level=1,
    clause=CLAUSE,
    explain="A head size without a kernel falls to the next one; page sizes or head ratios beyond the declared ones "
    "index wrongly.",
)
def shapes(target: Target) -> Outcome:
    """Undeclared head sizes, page sizes and head ratios."""
    harness = Harness(target)
    can = harness.can
    asked: list[tuple[dict[str, Any], str]] = []
    asked += [({"head_dim": size}, f"head size {size}") for size in HEAD_DIMS if size not in can.head_dims][:3]
    asked += [({"page": size}, f"pages of {size}") for size in PAGE_SIZES if size not in can.page_sizes][:3]
    if can.max_gqa_ratio < RATIOS_TRIED:
        ratio = can.max_gqa_ratio + 1
        asked.append(({"kv_heads": 1, "ratio": ratio}, f"{ratio} query heads on one KV head"))
    return _ask(harness, asked)


@check(
    "attention.refusals.batch_features",
    level=1,
    clause="attention/1.0: fill raises Unsupported for a batch feature that is not declared",
    explain="fill looks at the fields it knows and ignores the names in batch.features, so a feature that a later "
    "version adds would be dropped without a word.",
)
def batch_features(target: Target) -> Outcome:
    """A feature that no version has."""
    harness = Harness(target)
    step = Step(harness.rig(case := harness.case(ROWS)), case)
    step.batch.features = frozenset({"conformance_invented"})

    try:
        step.fill()
    except Unsupported as error:
        return {"refused": error.cause}
    raise Failed("fill took a batch feature that no version of the contract has")


@check(
    "attention.refusals.q_len",
    level=1,
    clause="attention/1.0: max_q_len_decode is the longest uniform query of leading rows",
    explain="A decode kernel with room for fewer queries a row than it is given.",
)
def q_len(target: Target) -> Outcome:
    """Leading rows with one query more than declared."""
    harness = Harness(target)
    longest = harness.can.max_q_len_decode + 1
    case = harness.case(rows_of((20, longest), (5, longest)), leading=2, kv_heads=1)
    return together([ask(harness, case, f"{longest} queries a leading row")])


@check(
    "attention.refusals.lse",
    level=1,
    clause="attention/1.0: lse, when given, is written; a backend without it refuses",
    explain="The lse argument is ignored, and what is merged afterwards was never written.",
)
def lse(target: Target) -> Outcome:
    """Where lse is declared it is judged by the numeric checks; here only that it is written or refused."""
    harness = Harness(target)
    case = harness.case(ROWS)
    step = Step(harness.rig(case), case)
    step.fill()
    step.store()
    margins = Margins()

    def attempt() -> None:
        step.attend(lse=True).check(margins)

    if harness.can.lse:
        attempt()
        return margins.figures()
    return together([refusal(attempt, "log-sum-exp")])


@check(
    "attention.refusals.host_lengths",
    level=1,
    clause="attention/1.0: host lengths may be upper bounds (exact=False); a backend that needs exact ones refuses",
    explain="Lengths on the host are taken for exact although the batch says that they are bounds.",
)
def host_lengths(target: Target) -> Outcome:
    """Bounds above the true lengths: right numbers from the device's lengths, or a refusal."""
    harness = Harness(target)
    page = harness.page
    case = harness.case(rows_of((page + 3, 1), (2 * page - 1, 1), (page, 5), (0, 9)), leading=2)
    longest = harness.case(rows_of((3 * page, 1)))
    step = Step(harness.rig(case, longest), case)
    bounds = step.context + np.array([7, 1, 3, 0], np.int32)
    if harness.can.host_lengths == "none":
        bounds = np.full_like(bounds, longest.rows[0].context)
    step.batch = replace(step.batch, exact=False, host_context=bounds)
    margins = Margins()

    def attempt() -> None:
        step.run().check(margins)

    if harness.can.host_lengths == "exact":
        return together([refusal(attempt, "lengths that are bounds")])
    attempt()
    return margins.figures()


def _ask(harness: Harness, asked: Sequence[tuple[dict[str, Any], str]]) -> Outcome:
    return together([ask(harness, harness.case(ROWS, **changes), what) for changes, what in asked])
