"""The kit's own solution of recurrent layers, against what follows from the formulas by other ways."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit_conformance.kits.recurrent.case import Case
from srtkit_conformance.kits.recurrent.content import Stream, draw_tokens, draw_weights
from srtkit_conformance.kits.recurrent.gold import Gold

MAMBA2 = Case("mamba2", "float32", heads=4, groups=2, head_dim=8, state_dim=16)
DELTA = Case("gated_delta", "float32", heads=4, groups=2, head_dim=8, state_dim=16)


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def convolved(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    weight = weights["conv_weight"].double()
    padded = F.pad(x.double().T[None], (weight.shape[1] - 1, 0))
    return F.silu(F.conv1d(padded, weight[:, None], weights["conv_bias"].double(), groups=len(weight)))[0].T


def test_mamba2_is_a_sum_over_all_earlier_tokens() -> None:
    weights, tokens = draw_weights(MAMBA2, rng()), draw_tokens(MAMBA2, rng(), 12)
    x, b, c = convolved(weights, tokens["xbc"]).split([32, 32, 32], 1)
    x, b, c = x.view(12, 4, 8), b.view(12, 2, 16), c.view(12, 2, 16)
    dt, a = tokens["dt"].double(), weights["a"].double()
    wanted = weights["d"].double()[:, None] * x
    for head in range(4):
        for i in range(12):
            for j in range(i + 1):
                factor = torch.exp(dt[j + 1 : i + 1, head].sum() * a[head]) * dt[j, head]
                wanted[i, head] += factor * (c[i, head // 2] @ b[j, head // 2]) * x[j, head]
    torch.testing.assert_close(Gold(MAMBA2.spec, weights).advance(tokens), wanted, rtol=1e-12, atol=1e-12)


def test_the_delta_rule_with_a_beta_of_one_reads_back_what_it_wrote() -> None:
    """With q = k and no decay: out √state_dim is v, but for the epsilon in the lengths of q and k."""
    weights, tokens = draw_weights(DELTA, rng()), draw_tokens(DELTA, rng(), 9)
    weights["conv_weight"][:32], weights["conv_bias"][:32] = weights["conv_weight"][32:64], weights["conv_bias"][32:64]
    tokens["qkv"][:, :32] = tokens["qkv"][:, 32:64]
    tokens |= {"beta": torch.ones(9, 4), "decay": torch.zeros(9, 4)}
    out = Gold(DELTA.spec, weights).advance(tokens) * 4
    v = convolved(weights, tokens["qkv"])[:, 64:].view(9, 4, 8)
    torch.testing.assert_close(out, v, rtol=1e-5, atol=1e-5)


def test_the_delta_rule_without_beta_only_forgets() -> None:
    weights, tokens = draw_weights(DELTA, rng()), draw_tokens(DELTA, rng(), 9)
    gold = Gold(DELTA.spec, weights)
    gold.advance(tokens)
    quiet = tokens | {"beta": torch.zeros(9, 4), "decay": torch.full((9, 4), -200.0)}
    assert float(gold.advance(quiet).abs().max()) < 1e-80


def test_a_sequence_in_parts_is_the_sequence_and_a_branch_another() -> None:
    for case in (MAMBA2, DELTA):
        weights, tokens = draw_weights(case, rng()), draw_tokens(case, rng(), 20)
        whole = Gold(case.spec, weights).advance(tokens)
        stream = Stream(case, [weights], tokens)
        parts = [stream.outputs(0, start, stop)[0] for start, stop in ((0, 7), (7, 8), (8, 20))]
        torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=0)
        branch, again = stream.branch(10, rng(), slot=2), Stream(case, [weights], tokens)
        torch.testing.assert_close(branch.outputs(0, 0, 10)[0], whole[:10], rtol=0, atol=0)
        assert not torch.isclose(branch.outputs(0, 10, 20)[0], whole[10:]).all(dim=2).any()
        assert again.outputs(0, 0, 1)[0].equal(whole[:1])
        assert again.known[0] is stream.known[0]


def test_the_yardstick_is_as_near_as_its_dtype() -> None:
    for case in (MAMBA2, DELTA):
        weights, tokens = draw_weights(case, rng()), draw_tokens(case, rng(), 40)
        truth = Gold(case.spec, weights).advance(tokens)
        for dtype, low, high in ((torch.float32, 1e-9, 1e-6), (torch.bfloat16, 1e-4, 1e-2)):
            near = Gold(case.spec, weights, rounded=dtype).advance(tokens)
            assert low < float((near - truth).norm() / truth.norm()) < high
