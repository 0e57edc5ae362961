"""Each operator against float64, in every dtype that is accepted."""

from __future__ import annotations

import pytest
import torch

from srtkit.spec.capabilities import No, NoOptions
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.layers import DTYPES
from srtkit.spec.ops import SCHEMAS, OpFacts, OpsBuild, OpsProvider, WeightOp
from srtkit_plugin_ops_my_plugin import srtkit_ops

FACTS = DeviceFacts("cpu", "test", "test")
DESCRIPTOR = srtkit_ops()


def provider() -> OpsProvider:
    limits = Limits(max_rows=4, max_tokens=64, max_context=64, page_size=16)
    platform = None  # these operators ask nothing of it
    return DESCRIPTOR.build(OpsBuild(platform, 0, limits, NoOptions()))  # type: ignore[arg-type]


def test_names_are_those_of_the_contract() -> None:
    assert DESCRIPTOR.names <= SCHEMAS.keys()


def test_a_dtype_it_has_not_is_refused_by_name() -> None:
    answer = DESCRIPTOR.accepts(OpFacts("rms_norm", "float16", FACTS, {"hidden": 64}))
    assert isinstance(answer, No)
    assert "float16" in answer.reason


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 2e-7), ("bfloat16", 3e-3)])
@pytest.mark.parametrize("scale", [0.1, 1.0, 40.0])
def test_rms_norm(dtype: str, limit: float, scale: float) -> None:
    facts = OpFacts("rms_norm", dtype, FACTS, {"hidden": 96})
    assert DESCRIPTOR.accepts(facts)
    random = torch.Generator().manual_seed(2)
    x = (torch.randn(7, 96, generator=random) * scale).to(DTYPES[dtype])
    weight = torch.randn(96, generator=random).to(DTYPES[dtype])
    before = x.clone()
    rms_norm = provider().bind(facts)
    assert not isinstance(rms_norm, WeightOp)
    out = rms_norm(x, weight, 1e-5)
    wide = x.double()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert out.dtype == x.dtype
    assert (out.double() - wanted).norm() / wanted.norm() < limit
    assert torch.equal(x, before)
