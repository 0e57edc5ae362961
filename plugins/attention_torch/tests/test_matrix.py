"""The gates over pairwise matrices: every pair of values of two factors occurs in some case.

Pools are poisoned: NaN in pages that no row refers to, garbage in page 0 and in the tails of used pages.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from conftest import Run

STEPS: dict[str, list[tuple[int, ...]]] = {
    "decode": [(99, 1)],
    "decode ragged": [(200, 1), (3, 1), (70, 1), (0, 1), (68, 1), (64, 1)],
    "decode even": [(40, 1)] * 5,
    "prompt": [(0, 70)],
    "prompts of one length": [(0, 17)] * 3,
    "chunk": [(75, 33)],
    "few": [(90, 4), (0, 3), (31, 9)],
    "mixed": [(80, 1), (12, 1), (0, 25), (65, 20), (64, 1)],
}
LEADING = {"decode": 1, "decode ragged": 6, "decode even": 5, "mixed": 2}

PLAIN: dict[str, Sequence[Any]] = {
    "dtype": ["bfloat16", "float16", "float32"],
    "head_dim": [64, 80, 96, 128, 256],
    "heads": [(3, 3), (2, 1), (2, 4), (1, 8), (1, 16)],
    "page": [16, 1, 7, 32, 256],
    "window": [0, 1, 24, 64],
    "step": list(STEPS),
    "std": [1.0, 0.1, 4.0],
    "permuted": [True, False],
    "garbage": [1e4, -1e4, 3.0e38],
    "padding": [0, 2],
}
FEATURES: dict[str, Sequence[Any]] = {
    **PLAIN,
    "fast": [True, False],
    "soft_cap": [0.0, 30.0],
    "sinks": [False, True],
    "causal": [True, False],
    "kv_dtype": ["", "float32", "float8_e4m3fn", "float8_e4m3fnuz"],
    "adjacent": [True, False],
}


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int = 1) -> list[dict[str, Any]]:
    """Cases that together hold every pair of values, found greedily."""
    names = list(factors)
    draw = random.Random(seed)

    def pairs_of(case: Mapping[str, Any]) -> set[Any]:
        return {(a, case[a], b, case[b]) for a, b in itertools.combinations(names, 2)}

    missing = {(a, x, b, y) for a, b in itertools.combinations(names, 2) for x in factors[a] for y in factors[b]}
    cases = []
    while missing:
        a, x, b, y = min(missing, key=repr)
        best: dict[str, Any] = {}
        for _ in range(30):
            case = {name: draw.choice(factors[name]) for name in names} | {a: x, b: y}
            if not best or len(pairs_of(case) & missing) > len(pairs_of(best) & missing):
                best = case
        missing -= pairs_of(best)
        cases.append(best)
    return cases


def lay_out(run: Callable[..., Run], case: Mapping[str, Any]) -> Run:
    """A matrix case in memory."""
    case = dict(case)
    step, (kv_heads, ratio) = case.pop("step"), case.pop("heads")
    leading = LEADING.get(step, 0)
    return run(STEPS[step], kv_heads=kv_heads, ratio=ratio, leading=leading, **case)


def name(case: Mapping[str, Any]) -> str:
    """A readable test id."""
    return "-".join(str(value) for value in case.values())


@pytest.mark.parametrize("case", pairwise(PLAIN), ids=name)
def test_plain_layers_take_the_fast_path(run: Callable[..., Run], case: dict[str, Any]) -> None:
    step = lay_out(run, case)
    step.run().check()
    assert step.plan.calls is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", PLAIN["dtype"])
@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("step", STEPS)
def test_the_fast_path_agrees_with_the_reference_path(
    run: Callable[..., Run], step: str, window: int, dtype: str
) -> None:
    case = {"step": step, "heads": (3, 3), "window": window, "dtype": dtype}
    fast, reference = (lay_out(run, {**case, "fast": fast}).attend() for fast in (True, False))
    allowed = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    for one, other in zip(fast, reference, strict=True):
        assert torch.linalg.norm(one.float() - other.float()) <= allowed * torch.linalg.norm(other.float())


@pytest.mark.parametrize("case", [c for c in pairwise(FEATURES) if c["causal"] or not c["window"]], ids=name)
def test_every_feature(run: Callable[..., Run], case: dict[str, Any]) -> None:
    lay_out(run, case).run().check()


def test_the_matrix_holds_every_pair() -> None:
    cases = pairwise(PLAIN)
    for a, b in itertools.combinations(PLAIN, 2):
        assert {(case[a], case[b]) for case in cases} == set(itertools.product(PLAIN[a], PLAIN[b]))
    assert len(cases) < 60
