"""Why fp8 KV is refused: what the operator makes of it, done here in float32, beside the suite's gate.

It takes fp8 keys with fp8 queries only, and rounds weights to fp8 as well before they meet the values.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from srtkit_conformance.kits.attention.case import Case, rows_of
from srtkit_conformance.kits.attention.content import Content
from srtkit_conformance.kits.attention.gold import visible
from srtkit_conformance.kits.numeric.gates import relative

FP8 = torch.float8_e4m3fn
LARGEST_WEIGHT = 256
"""The operator's weights are at most this before they are rounded, so that small ones keep their bits."""


@pytest.mark.parametrize(("std", "times"), [(0.1, 6), (1.0, 9), (4.0, 40)])
def test_its_error_is_many_times_that_of_bfloat16(std: float, times: float) -> None:
    case = Case(rows_of((99, 33)), "bfloat16", kv_dtype="float8_e4m3fn", kv_heads=4, std=std)
    content = Content(case, np.random.default_rng(0))
    error = relative(_as_the_operator_does(content).double(), content.truth().out)
    plain = relative(content.truth().same, content.truth().out)
    assert error > times * plain, "the gate is at 1.5 times"


def _as_the_operator_does(content: Content) -> Tensor:
    """Out [tokens, heads, size] of the only row: scales of queries by KV head, exact sums, a bfloat16 result."""
    spec, row = content.spec, content.case.rows[0]
    q = content.q.float().unflatten(1, (spec.kv_heads, -1))
    scale = q.abs().amax((0, 2, 3), keepdim=True) / torch.finfo(FP8).max
    rounded = ((q / scale).to(FP8).float() * scale).flatten(1, 2)
    heads = torch.arange(spec.q_heads) // content.case.ratio
    score = torch.einsum("nhd,mhd->hnm", rounded, content.keys[0][:, heads]) * spec.scale
    score.masked_fill_(~visible(spec, row.stored, row.n_query), -torch.inf)
    weight = torch.exp(score - score.amax(-1, keepdim=True))
    seen = (weight * LARGEST_WEIGHT).to(FP8).float() / LARGEST_WEIGHT
    out = torch.einsum("hnm,mhd->nhd", seen, content.values[0][:, heads]) / weight.sum(-1).t()[..., None]
    return out.to(torch.bfloat16)
