"""The kit's own operators in float64 against torch's, and how much of an error its bound lets pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from srtkit_conformance.check import Failed
from srtkit_conformance.kits.ops.cases import SIZES, Case
from srtkit_conformance.kits.ops.gold import Arguments, compare, draw, expected

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def drawn(op: str, dtype: str = "float32") -> tuple[Case, Arguments]:
    case = Case(op, dtype, SIZES[op][1])
    return case, draw(case, 6, np.random.default_rng(3))


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_norms() -> None:
    case, given = drawn("rms_norm")
    x, weight = given["x"].double(), given["weight"].double()
    close(expected(case, given, 0.25)["out"].value, F.rms_norm(x, (x.shape[1],), weight, 0.25))
    case, given = drawn("add_rms_norm", "bfloat16")
    total = given["x"] + given["residual"]
    found = expected(case, given, 0.25)
    close(found["out"].value, F.rms_norm(total.double(), (total.shape[1],), given["weight"].double(), 0.25))
    close(found["residual"].value, given["x"].double() + given["residual"].double())


def test_activation_and_linear() -> None:
    case, given = drawn("silu_mul")
    gate, up = given["gate_up"].double().chunk(2, 1)
    close(expected(case, given)["out"].value, F.silu(gate) * up)
    case, given = drawn("linear")
    x, weight, bias = (given[name].double() for name in ("x", "weight", "bias"))
    close(expected(case, given)["out"].value, F.linear(x, weight, bias))
    del given["bias"]
    close(expected(case, given)["out"].value, F.linear(x, weight))


def test_a_rotation_is_that_of_the_schema_and_keeps_lengths() -> None:
    case, given = drawn("rope")
    size = case.sizes["rotary"]
    for name, one in expected(case, given).items():
        x = given[name].double()
        part = x[..., :size]
        turned = part * given["cos"].double() + part.roll(size // 2, -1) * given["sin"].double()
        close(one.value, torch.cat((turned, x[..., size:]), -1))
        torch.testing.assert_close(one.value.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["rms_norm", "silu_mul", "linear"])
def test_the_bound_lets_a_rounding_pass_and_no_four(op: str, dtype: str) -> None:
    case, given = drawn(op, dtype)
    wanted = expected(case, given)["out"]
    assert compare(wanted.value.to(DTYPES[dtype]), wanted, dtype, op) <= 1
    last_place = torch.finfo(DTYPES[dtype]).eps
    share = 4 if dtype == "bfloat16" else 200  # beside the sums in float32 a rounding of float32 is nothing
    off = (wanted.value + wanted.summed * last_place * share / 2).to(DTYPES[dtype])
    with pytest.raises(Failed, match="farther from float64"):
        compare(off, wanted, dtype, op)


def test_other_forms_and_hidden_nan_are_found() -> None:
    case, given = drawn("silu_mul")
    given["gate_up"][1, 2] = float("nan")
    wanted = expected(case, given)["out"]
    exact = wanted.value.float()
    assert compare(exact, wanted, "float32", "silu_mul") <= 1
    for wrong in (exact.nan_to_num(), exact.double(), exact[:-1], None):
        with pytest.raises(Failed):
            compare(wrong, wanted, "float32", "silu_mul")
