"""How near the result is to a float64 solution: families of inputs, dtypes, head sizes, and the pairwise matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from srtkit_conformance.check import Outcome, check, expect
from srtkit_conformance.kits.attention.case import LARGEST, Case, rows_of
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step, ask, verify
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_conformance.kits.numeric.pairs import pairwise
from srtkit_conformance.target import Target

WINDOW = 24
SOFT_CAP = 30.0
CLAUSE = "attention/1.0: out is softmax(scale q·k) v over the visible tokens, with the gates of the suite"
HEAD_DIMS = (64, 80, 96, 128, 256)
RATIOS = (1, 3, 4, 8, 16)


def families(harness: Harness, **changes: Any) -> Margins:
    """Prompts shorter and longer than the window, a chunk with a cached prefix, decode; plain and windowed and capped.

    No single one of them shows all faults: short prompts hide windows, long contexts hide a wrong scale.
    """
    features: dict[str, Any] = {"window": WINDOW} if harness.has("window") else {}
    if harness.has("soft_cap"):
        features |= {"soft_cap": SOFT_CAP}
    shapes = ((rows_of((0, 50)), 0), (rows_of((99, 1), (75, 33), (0, 17)), 1))
    margins = Margins()
    for extra in [{}, *([features] if features else [])]:
        cases = [harness.case(rows, leading=leading, **{**extra, **changes}) for rows, leading in shapes]
        verify(harness, cases, margins)
    return margins


@check(
    "attention.numerics.small",
    level=1,
    clause=CLAUSE,
    explain="Inputs of standard deviation 0.1: absolute tolerances hide errors here, relative ones do not.",
)
def small(target: Target) -> Outcome:
    """Inputs of standard deviation 0.1."""
    return families(Harness(target), std=0.1).figures()


@check(
    "attention.numerics.unit",
    level=1,
    clause=CLAUSE,
    explain="A wrong scale, mask or head mapping; in gate B or C alone: one bad row, tile or head.",
)
def unit(target: Target) -> Outcome:
    """Inputs of standard deviation 1."""
    return families(Harness(target)).figures()


@check(
    "attention.numerics.large",
    level=1,
    clause=CLAUSE,
    explain="Inputs of standard deviation 4: nearly one-hot probabilities; a missing maximum or soft cap shows here.",
)
def large(target: Target) -> Outcome:
    """Inputs of standard deviation 4."""
    return families(Harness(target), std=4.0).figures()


def _dtype(target: Target, name: str) -> Outcome:
    harness = Harness(target)
    if name not in harness.can.dtypes:
        return ask(harness, harness.case(rows_of((20, 1), (0, 9)), dtype=name), f"dtype {name}")
    rows = rows_of((99, 1), (75, 33), (0, 40))
    return verify(harness, [harness.case(rows, dtype=name, leading=1, garbage=LARGEST)]).figures()


@check(
    "attention.numerics.float32",
    level=1,
    clause=CLAUSE,
    explain="Inputs are rounded to a shorter dtype (tf32, bfloat16) on the way; relative errors of 1e-3 tell.",
)
def float32(target: Target) -> Outcome:
    """float32 stays float32."""
    return _dtype(target, "float32")


@check(
    "attention.numerics.float16",
    level=1,
    clause=CLAUSE,
    explain="Probabilities in bfloat16 (three to five times the error), or sums in float16.",
)
def float16(target: Target) -> Outcome:
    """float16."""
    return _dtype(target, "float16")


@check(
    "attention.numerics.bfloat16",
    level=1,
    clause=CLAUSE,
    explain="Partial results rounded more than once, or sums in bfloat16.",
)
def bfloat16(target: Target) -> Outcome:
    """bfloat16."""
    return _dtype(target, "bfloat16")


@check(
    "attention.numerics.head_sizes",
    level=1,
    clause="attention/1.0: head_dims are the head sizes it takes",
    explain="A kernel padded to the next power of two that loads or drops the wrong elements.",
)
def head_sizes(target: Target) -> Outcome:
    """Declared head sizes among the usual ones."""
    harness = Harness(target)
    sizes = [size for size in HEAD_DIMS if size in harness.can.head_dims] or [harness.head_dim]
    rows = rows_of((37, 1), (20, 5), (0, 21))
    return verify(harness, [harness.case(rows, leading=1, head_dim=size, kv_heads=1) for size in sizes]).figures()


@check(
    "attention.numerics.head_ratios",
    level=1,
    clause="attention/1.0: query head h reads KV head h // (q_heads / kv_heads)",
    explain="Heads interleaved (h % kv_heads); a ratio that is no power of two; a ratio above a kernel's tile.",
)
def head_ratios(target: Target) -> Outcome:
    """Query heads per KV head: 1, 3, 4, 8, 16."""
    harness = Harness(target)
    rows = rows_of((37, 1), (20, 5), (0, 21))
    ratios = [ratio for ratio in RATIOS if ratio <= harness.can.max_gqa_ratio]
    return verify(harness, [harness.case(rows, leading=1, ratio=ratio) for ratio in ratios]).figures()


@check(
    "attention.numerics.scale",
    level=1,
    clause="attention/1.0: scale multiplies q·k",
    explain="The kernel uses head_dim ** -0.5 whatever the spec says; models with their own scale give wrong text.",
)
def scale(target: Target) -> Outcome:
    """A scale that is not the usual one."""
    harness = Harness(target)
    rows = rows_of((99, 1), (40, 21), (0, 33))
    usual: float = harness.head_dim**-0.5
    cases = [harness.case(rows, leading=1, scale=usual * factor) for factor in (0.7, 1.6)]
    return verify(harness, cases).figures()


@check(
    "attention.numerics.long",
    level=2,
    clause=CLAUSE,
    explain="Kernels split long contexts among blocks and merge: a lost split, a merge without the maximum, a split "
    "that is empty for the shorter rows.",
    seconds=120,
)
def long(target: Target) -> Outcome:
    """Contexts of 257 to 4100 tokens, alone and beside short rows."""
    harness = Harness(target)
    shapes = ([(256, 1)], [(1024, 1)], [(1999, 1), (3, 1), (1030, 1), (4099, 1)], [(1990, 33)], [(0, 300)])
    heads = {"kv_heads": 1, "ratio": min(4, harness.can.max_gqa_ratio)}
    cases = [harness.case(rows_of(*rows), leading=sum(n == 1 for _, n in rows), **heads) for rows in shapes]
    return verify(harness, cases).figures()


HEADS = ((2, 1), (2, 3), (1, 4), (1, 8), (1, 16))
"""KV heads, and query heads on each."""
MASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "causal": ("", {}),
    "none": ("non_causal", {"causal": False}),
    "window of 1": ("window", {"window": 1}),
    "window of 24": ("window", {"window": 24}),
}
"""Name → the feature it needs, fields of the case."""
TREE = "drafts in a tree"
NEVER = {("step", TREE, "mask", "none")}
"""A tree says what drafts see, and so does a layer without causal order: that all see all."""


def steps(harness: Harness) -> dict[str, dict[str, Any]]:
    """Kinds of step by name, as fields of a case."""
    n = min(5, harness.can.max_q_len_decode)
    found: dict[str, dict[str, Any]] = {
        "decode": {"rows": rows_of((90, 1), (3, 1), (0, 1), (64, 1)), "leading": 4},
        "prompt": {"rows": rows_of((0, 70))},
        "prompts of one length": {"rows": rows_of(*[(0, 17)] * 2)},
        "chunks": {"rows": rows_of((75, 20), (0, 3), (31, 9))},
        "mixed": {"rows": rows_of((80, 1), (12, 1), (0, 9), (65, 10), (64, 1)), "leading": 2},
    }
    if harness.has("tree_mask"):
        found[TREE] = {"rows": rows_of((75, n), (0, n), (33, n), (0, 9), (20, 1)), "leading": 3, "tree": True}
    return found


def matrix(harness: Harness) -> list[tuple[bool, Case]]:
    """(fresh, case): all pairs of what is declared: dtypes, shapes, pages, features, kinds of step, sizes of input."""
    can = harness.can
    factors = {
        **_shared(harness),
        "head_dim": [size for size in HEAD_DIMS if size in can.head_dims] or [harness.head_dim],
        "heads": [heads for heads in HEADS if heads[1] <= can.max_gqa_ratio],
        "mask": [name for name, (feature, _) in MASKS.items() if not feature or harness.has(feature)],
        "soft_cap": [0.0, 2.0] if harness.has("soft_cap") else [0.0],
        "sinks": [False, True] if harness.has("sinks") else [False],
    }
    drawn = pairwise(factors, seed=harness.target.seed, never=NEVER)
    for one in drawn:
        one["kv_heads"], one["ratio"] = one.pop("heads")
        one |= MASKS[one.pop("mask")][1]
    return [_case(harness, one) for one in drawn]


def latent_matrix(harness: Harness) -> list[tuple[bool, Case]]:
    """The same of latent layers, whose shape is one and which go with no mask, cap or sinks; none if not declared."""
    if not harness.has("mla"):
        return []
    ratios = [ratio for ratio in (16, 1, 3) if ratio <= harness.can.max_gqa_ratio]
    factors = {**_shared(harness), "mla": [harness.mla], "ratio": ratios}
    return [_case(harness, one) for one in pairwise(factors, seed=harness.target.seed)]


def _shared(harness: Harness) -> dict[str, Sequence[Any]]:
    """Factors of both."""
    fp8 = sorted(name for name in harness.can.kv_dtypes if name.startswith("float8"))
    return {
        "dtype": harness.dtypes,
        "page": [size for size in (16, 1, 7, 256) if size in harness.can.page_sizes] or [harness.page],
        "step": list(steps(harness)),
        "std": [1.0, 0.1, 4.0],
        "permuted": [True, False],
        "garbage": [1e4, LARGEST],
        "padding": [0, 2],
        "fused": [False, True],
        "fresh": [False, True],
        "kv_dtype": ["the same", "another", *fp8],
    }


def _case(harness: Harness, drawn: dict[str, Any]) -> tuple[bool, Case]:
    """Of drawn factors, taking a declared KV dtype for "another"; "the same" if the pair of dtypes is declined."""
    kv_dtypes, chosen = harness.can.kv_dtypes, drawn["kv_dtype"]
    if not chosen.startswith("float8"):
        others = sorted(name for name in kv_dtypes - {drawn["dtype"]} if not name.startswith("float8"))
        chosen = others[0] if others and chosen == "another" else ""
    fresh, step = drawn.pop("fresh"), drawn.pop("step")
    case = harness.case(**{**drawn, **steps(harness)[step], "kv_dtype": chosen})
    if not harness.layouts(case.spec, case.page):  # how a plugin declines a pair of dtypes
        _expect_layout(harness, case)
        case = replace(case, kv_dtype="")
    return fresh, case


def _expect_layout(harness: Harness, case: Case) -> None:
    """A pair may be declined; what is declared goes with something. Raises `Failed` for a `kv_dtype` that does not."""
    pairs = [replace(case, dtype=dtype, mla=mla) for dtype in harness.dtypes for mla in {case.mla, None}]
    expect(
        any(harness.layouts(one.spec, one.page) for one in pairs),
        f"declares kv_dtype {case.spec.kv_dtype} and offers no layout for it, whatever is computed in",
        observed=f"pages of {case.page} tokens, dtypes {', '.join(harness.dtypes)}",
    )


@check(
    "attention.numerics.matrix",
    level=2,
    clause="attention/1.0: everything declared works together with everything else declared",
    explain="A template or branch that exists for one combination of shapes only, trees and latent layers among them; "
    "a kv_dtype is declared that no layout is offered for. The message names the case.",
    seconds=300,
)
def pairs(target: Target) -> Outcome:
    """Every pair of declared values in some step."""
    harness = Harness(target)
    margins = Margins()
    cases = [*matrix(harness), *latent_matrix(harness)]
    for fresh, case in cases:
        step = Step(harness.rig(case), case)
        step.run(fresh=fresh).check(margins)
    return {"cases": len(cases), **margins.figures()}
