"""The truth and the gates of the attention checks, against loops over single scores and numbers known beforehand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from srtkit.spec.attention import AttentionSpec
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.check import Failed
from srtkit_conformance.checks.attention.numerics import latent_matrix, matrix
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.attention.case import Case, rows_of
from srtkit_conformance.kits.attention.content import Content
from srtkit_conformance.kits.attention.gold import Tree, attend_row, visible
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.numeric.gates import Margins, Truth
from srtkit_conformance.kits.numeric.pairs import pairwise
from srtkit_conformance.kits.numeric.pool import CANARY, GUARD, Guarded, fill, litter

SPEC = AttentionSpec(6, 2, 8, 8, 0.3, "float32", "float32")


def naive(
    spec: AttentionSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, stored: int, tree: Tree | None, sinks: bool
) -> tuple[list[list[list[float]]], list[list[float]]]:
    """out and lse, one score after the other."""
    out, lse = [], []
    for i in range(len(q)):
        out.append([])
        lse.append([])
        for head in range(spec.q_heads):
            scores, values = [], []
            for j in range(len(k)):
                mine, its = stored + i, j
                seen = its <= mine or not spec.causal
                if tree is not None:
                    mine = stored + int(tree.depth[i])
                    its = j if j < stored else stored + int(tree.depth[j - stored])
                    seen = j < stored or bool(tree.sees[i, j - stored])
                if not seen or (spec.window and mine - its >= spec.window):
                    continue
                score = sum(float(a) * float(b) for a, b in zip(q[i, head], k[j, head // 3], strict=True)) * spec.scale
                scores.append(spec.soft_cap * math.tanh(score / spec.soft_cap) if spec.soft_cap else score)
                values.append(v[j, head // 3])
            total = sum(map(math.exp, scores)) + (math.exp(0.5 * head) if sinks else 0.0)
            shares = [math.exp(score) / total for score in scores]
            out[-1].append([sum(s * float(x[d]) for s, x in zip(shares, values, strict=True)) for d in range(8)])
            lse[-1].append(math.log(total))
    return out, lse


@pytest.mark.parametrize(
    ("change", "tree", "sinks"),
    [
        ({}, False, False),
        ({"window": 3}, False, True),
        ({"causal": False, "soft_cap": 1.5}, False, False),
        ({}, True, False),
        ({"window": 2}, True, False),
    ],
)
def test_the_truth_is_what_single_scores_give(change: dict[str, object], tree: bool, sinks: bool) -> None:
    spec = replace(SPEC, **change)  # type: ignore[arg-type]
    torch.manual_seed(1)
    stored, n = 6, 4
    row = torch.randn(n, 6, 8), torch.randn(stored + n, 2, 8), torch.randn(stored + n, 2, 8)
    drafts = Tree.random(np.random.default_rng(3), n) if tree else None
    out, lse = attend_row(spec, row, visible(spec, stored, n, drafts), torch.arange(6) * 0.5 if sinks else None)
    wanted, wanted_lse = naive(spec, *row, stored, drafts, sinks)
    assert torch.allclose(out, torch.tensor(wanted, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(lse, torch.tensor(wanted_lse, dtype=torch.float64), atol=1e-12)


def test_bits_of_a_tree_name_the_drafts_it_sees() -> None:
    tree = Tree.random(np.random.default_rng(0), 37)
    words = tree.words().numpy().view(np.uint32)
    assert words.shape == (37, 2)
    for i, j in itertools.product(range(37), range(37)):
        assert bool(words[i, j // 32] >> (j % 32) & 1) == bool(tree.sees[i, j])
    assert not (words[:, 1] >> 5).any()


def truth() -> Truth:
    """A step in bfloat16."""
    case = Case(rows_of((20, 1), (0, 9)), "bfloat16", leading=1)
    return Content(case, np.random.default_rng(2)).truth()


def test_the_dtypes_own_error_passes_the_gates_and_twice_of_it_does_not() -> None:
    gold = truth()
    Margins().judge(gold, "bfloat16", gold.same, gold.same_lse, "here")
    with pytest.raises(Failed, match=r"gate A.*here"):
        Margins().judge(gold, "bfloat16", gold.out + 2 * (gold.same - gold.out), gold.lse, "here")


def test_one_bad_row_one_bad_value_and_a_bad_sum_are_found() -> None:
    gold = truth()
    row = gold.out.clone()
    row[0] += 5 * (gold.same - gold.out)[0]
    with pytest.raises(Failed, match=r"gate C.*row 0"):
        Margins().judge(gold, "bfloat16", row, None, "here")
    one = gold.out.clone()
    one[3, 2, 1] += 4 * (gold.same - gold.out).abs().max()
    with pytest.raises(Failed, match="gate B"):
        Margins().judge(gold, "bfloat16", one, None, "here")
    with pytest.raises(Failed, match="not finite"):
        Margins().judge(gold, "bfloat16", one.masked_fill(one > 1, torch.nan), None, "here")
    with pytest.raises(Failed, match="log-sum-exp"):
        Margins().judge(gold, "bfloat16", gold.out, gold.lse + 0.05, "here")


def test_guards_notice_writes_beside_a_result() -> None:
    result = Guarded(10, (2,), torch.float32, torch.device("cpu"))
    result.inner[3:5] = 1.0
    assert (result.covered(3, 5, "out", "here") == 1.0).all()
    with pytest.raises(Failed, match=r"1 tokens of out outside \[4, 5\)"):
        result.covered(4, 5, "out", "here")
    result.inner.as_strided((1,), (1,), (GUARD - 1) * 2)[0] = CANARY + 1
    with pytest.raises(Failed, match="1 tokens"):
        result.covered(3, 5, "out", "here")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e4m3fnuz])
def test_poison_is_nan_and_litter_is_finite(dtype: torch.dtype) -> None:
    plane = torch.zeros(4, 3, 2).to(dtype)
    fill(plane, torch.nan)
    assert plane.float().isnan().all()
    litter({"k": plane}, [1, 2], math.inf, seed=0)
    assert plane[0].float().isnan().all()
    assert (plane[1].float().abs() == torch.finfo(dtype).max).all()
    litter({"k": plane}, [1], 100.0, seed=0)
    assert ((plane[1].float().abs() - 100.0).abs() <= 4).all()


def test_the_matrix_holds_every_pair() -> None:
    factors = {"a": [1, 2, 3], "b": ["x", "y"], "c": [True, False], "d": [0.1, 1, 4]}
    cases = pairwise(factors)
    for one, other in itertools.combinations(factors, 2):
        assert {(case[one], case[other]) for case in cases} == set(itertools.product(factors[one], factors[other]))
    assert len(cases) < 18


def test_a_pair_that_cannot_be_is_in_no_case_and_all_others_are() -> None:
    factors = {"a": [1, 2, 3], "b": ["x", "y"], "c": [True, False]}
    cases = pairwise(factors, never={("a", 2, "c", False)})
    for one, other in itertools.combinations(factors, 2):
        wanted = set(itertools.product(factors[one], factors[other])) - {(2, False)}
        assert {(case[one], case[other]) for case in cases} == wanted


@pytest.mark.parametrize("seed", range(3))
def test_the_matrix_of_the_reference_holds_trees_latent_layers_and_all_head_sizes(seed: int, tmp_path: Path) -> None:
    harness = Harness(load_target(Subject("attention", "torch", seed=seed), suite_for("attention"), tmp_path))
    plain = [case for _, case in matrix(harness)]
    pages = {1, 7, 16, 256}
    assert {(case.head_dim, case.page) for case in plain} == set(itertools.product((64, 80, 96, 128, 256), pages))
    assert {case.ratio for case in plain} == {1, 3, 4, 8, 16}
    trees = [case for case in plain if case.tree]
    assert all(case.causal and case.rows[0].n_query > 1 for case in trees)
    assert {case.page for case in trees} == pages
    assert {case.sinks for case in trees} == {True, False}
    latent = [case for _, case in latent_matrix(harness)]
    assert all(case.mla is not None for case in latent)
    assert {(case.tree, case.page) for case in latent} == set(itertools.product((True, False), pages))
    assert {(len(case.rows), case.dtype) for case in latent} >= {(5, name) for name in harness.dtypes}
