"""Operators against core's references in float64, with every instruction set; what is accepted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from srtkit.engine import ops as reference
from srtkit.spec.capabilities import No
from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.ops import Op, OpFacts
from srtkit_plugin_cpu_native import library
from srtkit_plugin_cpu_native.ops import NAMES, accepts
from srtkit_plugin_cpu_native.provider import NativeOps

CPU = DeviceFacts("cpu", "test", "x86_64", extra={"isa": "avx512_bf16 avx512f avx2"})
HALF_ULP = {torch.float32: 2**-20, torch.bfloat16: 2**-8 + 2**-20}
"""Relative error of a result that is rounded once; float32 has none of its own, but its sums have."""
NAME = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
SIZES = [1, 15, 16, 17, 31, 576]
ROWS = [1, 2, 33]
"""33 rows of 576 are shared among threads."""

pytestmark = pytest.mark.usefixtures("kernels")
dtypes = pytest.mark.parametrize("dtype", list(NAME), ids=NAME.get)
sizes = pytest.mark.parametrize("size", SIZES)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(3)


def op(name: str, dtype: torch.dtype) -> Op:
    return NativeOps().bind(OpFacts(name, NAME[dtype], CPU))


def near(ours: Tensor, exact: Tensor) -> bool:
    """Every element within the rounding of its dtype."""
    assert exact.dtype is torch.float64
    return torch.allclose(ours.double(), exact, rtol=HALF_ULP[ours.dtype], atol=2**-20, equal_nan=True)


def rows_of(rows: int, size: int, dtype: torch.dtype) -> list[Tensor]:
    """Dense, as a slice of something wider, and with strided columns."""
    values = torch.randn(rows, size).mul(4).to(dtype)
    wide = torch.randn(rows, size + 9).to(dtype)
    wide[:, 5 : 5 + size] = values
    return [values, wide[:, 5 : 5 + size], values.T.contiguous().T]


@dtypes
@sizes
def test_rms_norm(dtype: torch.dtype, size: int) -> None:
    weight = torch.randn(size).to(dtype)
    for rows in ROWS:
        for x in rows_of(rows, size, dtype):
            before = x.clone()
            assert near(op("rms_norm", dtype)(x, weight, 0.5), reference.rms_norm(x.double(), weight.double(), 0.5))
            assert torch.equal(x, before)


@dtypes
@sizes
def test_add_rms_norm_changes_the_residual_in_place(dtype: torch.dtype, size: int) -> None:
    weight = torch.randn(size).to(dtype)
    for rows in ROWS:
        for x in rows_of(rows, size, dtype):
            before, residual = x.clone(), torch.randn(rows, size).to(dtype)
            total = residual + x
            out = op("add_rms_norm", dtype)(x, residual, weight, 1e-5)
            assert torch.equal(residual, total)
            assert near(out, reference.rms_norm(total.double(), weight.double(), 1e-5))
            assert torch.equal(x, before)


@dtypes
@sizes
def test_silu_mul(dtype: torch.dtype, size: int) -> None:
    for rows in ROWS:
        for gate_up in rows_of(rows, 2 * size, dtype):
            before = gate_up.clone()
            assert near(op("silu_mul", dtype)(gate_up), reference.silu_mul(gate_up.double()))
            assert torch.equal(gate_up, before)


@dtypes
def test_silu_of_large_gates(dtype: torch.dtype) -> None:
    gate = torch.linspace(-120, 120, 481).to(dtype)
    out = op("silu_mul", dtype)(torch.cat((gate, torch.ones_like(gate)))[None])
    assert near(out[0], reference.silu_mul(torch.cat((gate, torch.ones_like(gate))).double()))


FORMS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "side by side": lambda fused: (fused[:, :3], fused[:, 3:5]),
    "apart": lambda fused: (fused[:, :3].clone(), fused[:, 3:5].clone()),
    "k before q": lambda fused: (fused[:, 2:5], fused[:, :2]),
    "a gap between": lambda fused: (fused[:, :3], fused[:, 4:6]),
}
"""How q and k, of three heads and two, stand in a buffer of eight."""


def tables(rows: int, rotary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [rows, 1, rotary] as the contract has them."""
    angle = torch.rand(rows, 1, rotary // 2) * 6.3
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


@dtypes
@pytest.mark.parametrize("half", [1, 8, 15, 16, 17, 32])
@pytest.mark.parametrize("rest", [0, 7], ids=["whole head", "part of the head"])
@pytest.mark.parametrize("part", FORMS.values(), ids=FORMS)
def test_rope(dtype: torch.dtype, half: int, rest: int, part: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    size = 2 * half + rest
    for rows in ROWS:
        fused = torch.randn(rows, 8, size).to(dtype)
        before, written = fused.clone(), torch.zeros_like(fused, dtype=torch.bool)
        q, k = part(fused)
        for view in part(written):
            view.fill_(True)
        cos, sin = tables(rows, 2 * half, dtype)
        exact = q.double(), k.double()
        reference.rope(*exact, cos.double(), sin.double())
        op("rope", dtype)(q, k, cos, sin)
        assert near(q, exact[0])
        assert near(k, exact[1])
        assert torch.equal(fused[~written], before[~written])


def spoilt(x: Tensor) -> Tensor:
    """A copy with a NaN, and its sign bit set, in the last row's last column and another in the first."""
    x = x.clone()
    x[-1, -1], x[-1, 0] = torch.nan, -torch.nan
    return x


@dtypes
@sizes
def test_nan_stays_nan_and_where_it_is(dtype: torch.dtype, size: int) -> None:
    x, gate_up = torch.randn(3, size).to(dtype), torch.randn(3, 2 * size).to(dtype)
    weight = torch.ones(size, dtype=dtype)
    calls: list[tuple[Callable[[Tensor], Tensor], Tensor]] = [
        (lambda x: op("rms_norm", dtype)(x, weight, 1e-5), x),
        (lambda x: op("add_rms_norm", dtype)(torch.ones_like(x), x, weight, 1e-5), x),
        (op("silu_mul", dtype), gate_up),
    ]
    for call, given in calls:
        out = call(spoilt(given))
        assert not out[:2].isnan().any()
        assert out[2, 0].isnan()
        assert out[2, -1].isnan()
    q, k = torch.randn(2, 1, 40).to(dtype), torch.randn(2, 1, 40).to(dtype)
    q[1, 0, 3] = k[0, 0, 37] = torch.nan
    op("rope", dtype)(q, k, *tables(2, 40, dtype))
    assert q.isnan().nonzero().tolist() == [[1, 0, 3], [1, 0, 23]]
    assert k.isnan().nonzero().tolist() == [[0, 0, 17], [0, 0, 37]]


@dtypes
def test_no_rows(dtype: torch.dtype) -> None:
    none, weight = torch.empty(0, 32, dtype=dtype), torch.ones(32, dtype=dtype)
    assert op("rms_norm", dtype)(none, weight, 1e-5).shape == (0, 32)
    assert op("add_rms_norm", dtype)(none, none.clone(), weight, 1e-5).shape == (0, 32)
    assert op("silu_mul", dtype)(none).shape == (0, 16)
    op("rope", dtype)(none[:, None], none[:, None], none[:, None], none[:, None])


# --- what is accepted


def reason(name: str, dtype: str, device: DeviceFacts, **sizes: int) -> str:
    answer = accepts(OpFacts(name, dtype, device, sizes))
    assert isinstance(answer, No)
    return answer.reason


def test_what_is_accepted_and_why_the_rest_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES - {"linear"}:
        assert accepts(OpFacts(name, "bfloat16", CPU))
        assert accepts(OpFacts(name, "float32", CPU))
        assert reason(name, "float16", CPU) == "has no float16"
        assert "not for cuda" in reason(name, "float32", DeviceFacts("cuda", "test", "sm90"))
        assert "AVX2" in reason(name, "float32", DeviceFacts("cpu", "test", "x86_64"))
    old = DeviceFacts("cpu", "test", "x86_64", extra={"isa": "avx512f avx2"})
    assert accepts(OpFacts("linear", "bfloat16", CPU, {"in": 96, "out": 5}))
    assert reason("linear", "float32", CPU) == "has linears in bfloat16 only"
    assert "AVX512_BF16" in reason("linear", "bfloat16", old)
    assert "multiples of 32" in reason("linear", "bfloat16", CPU, **{"in": 80, "out": 32})


def test_facts_that_are_not_this_processors_meet_an_error(kernels: library.Kernels) -> None:
    if kernels.linear is None:
        with pytest.raises(DeviceAbsent, match="has no linear for this processor"):
            NativeOps().bind(OpFacts("linear", "bfloat16", CPU, {"in": 32, "out": 32}))
    else:
        assert callable(NativeOps().bind(OpFacts("linear", "bfloat16", CPU, {"in": 32, "out": 32})))
