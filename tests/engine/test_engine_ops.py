"""The reference operators against float64 arithmetic, and how the binder chooses among providers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from srtkit.engine import ops
from srtkit.engine.ops import Binder, Offer
from srtkit.spec.capabilities import YES, Answer, No, NoOptions
from srtkit.spec.errors import PluginBroken, Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.ops import SCHEMAS, ExpertsOp, Op, OpFacts, OpsDescriptor, OpsProvider, WeightOp
from srtkit_conformance.kits.ops.cases import SIZES, Case
from srtkit_conformance.kits.ops.gold import compare, draw, expected

CPU = DeviceFacts(platform="cpu", name="test", architecture="x86_64")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 6e-3}
DTYPES = list(TOLERANCE)


def near(ours: Tensor, exact: Tensor) -> bool:
    return bool((ours.double() - exact.double()).norm() <= TOLERANCE[ours.dtype] * exact.double().norm())


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 33).mul(3).to(dtype), torch.randn(33).to(dtype)
    wide = x.double()
    exact = wide / (wide.square().mean(1, keepdim=True) + 0.25).sqrt() * weight.double()
    assert near(ops.rms_norm(x, weight, 0.25), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_changes_the_residual_only(dtype: torch.dtype) -> None:
    x, residual, weight = (torch.randn(5, 33).to(dtype) for _ in range(3))
    before, total = x.clone(), x + residual
    assert torch.equal(ops.add_rms_norm(x, residual, weight[0], 1e-5), ops.rms_norm(total, weight[0], 1e-5))
    assert torch.equal(residual, total)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul(dtype: torch.dtype) -> None:
    x = torch.randn(4, 14).mul(3).to(dtype)
    gate, up = x.double()[:, :7], x.double()[:, 7:]
    assert near(ops.silu_mul(x), gate / (1 + (-gate).exp()) * up)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_turns_pairs_by_the_angle(dtype: torch.dtype) -> None:
    """As complex numbers: dimension i and i + R / 2 are one number, turned by the angle."""
    q, k = torch.randn(6, 4, 10).to(dtype), torch.randn(6, 2, 10).to(dtype)
    angles = torch.rand(6, 4, dtype=torch.float64) * 2 * math.pi
    cos, sin = angles.cos(), angles.sin()
    turned = []
    for x in (q, k):
        pairs = torch.complex(x.double()[..., :4], x.double()[..., 4:8]) * torch.complex(cos, sin).unsqueeze(1)
        turned.append(torch.cat((pairs.real, pairs.imag, x.double()[..., 8:]), -1))
    ops.rope(q, k, torch.cat((cos, cos), -1).to(dtype).unsqueeze(1), torch.cat((-sin, sin), -1).to(dtype).unsqueeze(1))
    assert near(q, turned[0])
    assert near(k, turned[1])


class Doubler(WeightOp):
    """Twice the right result, so that a test sees who computed."""

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return 2 * x @ self.weight.T

    @property
    def keeps_weight(self) -> bool:
        return True


class Provider(OpsProvider):
    def __init__(self, give: Callable[[OpFacts], Op | WeightOp]) -> None:
        self.give = give

    def bind(self, facts: OpFacts) -> Op | WeightOp:
        return self.give(facts)


def offer(name: str, accepts: Callable[[OpFacts], Answer], give: Callable[[OpFacts], Any], *names: str) -> Offer:
    descriptor = OpsDescriptor(
        contract="1.0",
        options=NoOptions,
        names=frozenset(names or ("linear", "rope")),
        accepts=accepts,
        build=lambda given: Provider(give),
    )
    return Offer(name, descriptor, Provider(give))


def test_every_operator_of_the_contract_has_a_reference() -> None:
    """But for those whose reference the layer brings."""
    binder = Binder([], CPU)
    for name in SCHEMAS.keys() - {"route", "experts"}:
        bind = binder.weight_op if SCHEMAS[name].weight_side else binder.op
        assert callable(bind(name, "float32", hidden=8))
    assert binder.op_or(ops.silu_mul, "route", "float32", experts=8) is ops.silu_mul
    assert set(binder.choices.values()) == {"torch"}
    with pytest.raises(Unsupported, match="op:route"):
        binder.op("route", "float32", experts=8)
    with pytest.raises(Unsupported, match="op:rope"):
        binder.weight_op("rope", "float32", head_dim=8)


def test_the_first_provider_that_accepts_is_bound_and_the_reasons_are_kept() -> None:
    seen: list[OpFacts] = []

    def narrow(facts: OpFacts) -> Answer:
        seen.append(facts)
        return YES if facts.sizes["in"] <= 4 else No("only up to 4 inputs")

    binder = Binder(
        [
            offer("elsewhere", lambda facts: YES, lambda facts: 1 / 0, "rope"),
            offer("narrow", narrow, lambda facts: Doubler()),
        ],
        CPU,
    )
    weight, x = torch.eye(4), torch.ones(1, 4)
    small = binder.weight_op("linear", "float32", **{"in": 4, "out": 4})
    small.pack(weight, None)
    assert torch.equal(small(x), 2 * x)
    large = [binder.weight_op("linear", "float32", **{"in": 8, "out": 4}) for _ in range(3)]
    large[0].pack(torch.ones(4, 8), torch.ones(4))
    assert torch.equal(large[0](torch.ones(1, 8)), torch.full((1, 4), 9.0))
    assert large[0].keeps_weight
    assert seen[0] == OpFacts("linear", "float32", CPU, {"in": 4, "out": 4})
    assert binder.choices == {
        "linear float32 in=4 out=4": "narrow",
        "linear float32 in=8 out=4": "torch (narrow: only up to 4 inputs)",
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", ["embed", "argmax", "sample", "penalize"])
def test_references_of_token_ids_are_right_by_the_suite(op: str, dtype: str) -> None:
    rng = np.random.default_rng(5)
    for sizes in SIZES[op]:
        case = Case(op, dtype, sizes)
        given = draw(case, 40, rng, 2.0)
        there = {name: tensor.clone() for name, tensor in given.items()}
        out = vars(ops)[op](*there.values())
        for name, wanted in expected(case, given).items():
            compare(out if name == "out" else there[name], wanted, dtype, op)


def test_an_unknown_operator_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="op:softmax"):
        Binder([], CPU).op("softmax", "float32")


def test_a_provider_that_binds_the_wrong_sort_is_named() -> None:
    binder = Binder([offer("odd", lambda facts: YES, lambda facts: ops.silu_mul)], CPU)
    with pytest.raises(PluginBroken, match="ops:odd"):
        binder.weight_op("linear", "float32", **{"in": 4, "out": 4})


class Negated(ExpertsOp):
    """As a layer's reference, or a provider's."""

    def pack(self, gate_up: Tensor, down: Tensor) -> bool:
        return False

    def __call__(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        return -x


def test_a_provider_goes_before_the_reference_of_the_layer_if_it_is_of_its_sort() -> None:
    own, theirs = Negated(), Negated()

    def few(facts: OpFacts) -> Answer:
        return YES if facts.sizes["experts"] <= 8 else No("only up to 8 experts")

    binder = Binder([offer("few", few, lambda facts: theirs, "experts")], CPU)
    assert binder.op_or(own, "experts", "float32", experts=8) is theirs
    assert binder.op_or(own, "experts", "float32", experts=9) is own
    assert binder.choices["experts float32 experts=9"] == "torch (few: only up to 8 experts)"
    odd = Binder([offer("odd", few, lambda facts: Doubler(), "experts")], CPU)
    with pytest.raises(PluginBroken, match="ops:odd"):
        odd.op_or(own, "experts", "float32", experts=8)
