"""Linears against float64: every number of rows near a kernel's limits, packing, and what must not be written."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor

from srtkit.spec.facts import DeviceFacts
from srtkit.spec.ops import OpFacts, WeightOp
from srtkit_plugin_cpu_native import library
from srtkit_plugin_cpu_native.provider import NativeOps

CPU = DeviceFacts("cpu", "test", "x86_64", extra={"isa": "avx512_bf16 avx512f avx2"})
ROWS = [*range(1, 41), 300]
IN = 96


BF16_SETS = range(2, 4)

pytestmark = pytest.mark.parametrize("kernels", BF16_SETS, indirect=True, ids=[library.SETS[i] for i in BF16_SETS])


@pytest.fixture(autouse=True)
def _seed(kernels: library.Kernels) -> None:
    torch.manual_seed(3)


def new() -> WeightOp:
    return cast(WeightOp, NativeOps().bind(OpFacts("linear", "bfloat16", CPU, {"in": IN, "out": 1})))


def check(ours: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Each output within the rounding of bfloat16, and of the float32 sums before it."""
    x, weight = x.double(), weight.double()
    exact = x @ weight.T + (0 if bias is None else bias.double())
    allowed = exact.abs() * 2**-8 + (x.abs() @ weight.abs().T) * 2**-20
    assert ours.dtype is torch.bfloat16
    assert ours.is_contiguous()
    assert bool(((ours.double() - exact).abs() <= allowed).all())


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("out", [1, 15, 16, 17, 40, 80, 113])
def test_linear(out: int, bias: bool) -> None:
    weight = torch.randn(out, IN, dtype=torch.bfloat16)
    offset = torch.randn(out, dtype=torch.bfloat16) * 8 if bias else None
    linear = new()
    linear.pack(weight, offset)
    for rows in ROWS:
        wide = torch.randn(rows, IN + 7, dtype=torch.bfloat16)
        for x in (wide[:, :IN].contiguous(), wide[:, 5 : 5 + IN], torch.randn(IN, rows, dtype=torch.bfloat16).T):
            check(linear(x), x, weight, offset)


@pytest.mark.parametrize("size", [32, 64, 4096])
def test_lengths_of_the_sums(size: int) -> None:
    weight = torch.randn(48, size, dtype=torch.bfloat16)
    linear = new()
    linear.pack(weight, None)
    for rows in (1, 5, 7, 17, 33):
        x = torch.randn(rows, size, dtype=torch.bfloat16)
        check(linear(x), x, weight, None)


def test_it_is_packed_again_after_a_reload_and_needs_the_weight_no_more() -> None:
    linear = new()
    assert not linear.keeps_weight
    for out, bias in ((40, True), (40, False), (23, True)):
        weight, offset = torch.randn(out, IN, dtype=torch.bfloat16), torch.randn(out, dtype=torch.bfloat16)
        kept = weight.clone()
        linear.pack(weight, offset if bias else None)
        weight.fill_(torch.nan)
        x = torch.randn(9, IN, dtype=torch.bfloat16)
        check(linear(x), x, kept, offset if bias else None)


def test_a_weight_in_another_order_of_memory() -> None:
    weight = torch.randn(IN, 40, dtype=torch.bfloat16).T
    linear = new()
    linear.pack(weight, None)
    x = torch.randn(9, IN, dtype=torch.bfloat16)
    check(linear(x), x, weight, None)


def test_a_row_of_nan_spoils_no_other() -> None:
    linear = new()
    linear.pack(torch.randn(40, IN, dtype=torch.bfloat16), None)
    for rows in ROWS:
        x = torch.randn(rows, IN, dtype=torch.bfloat16)
        clean = linear(x)
        x[-1, -1] = torch.nan
        out = linear(x)
        assert out[-1].isnan().all()
        assert torch.equal(out[:-1], clean[:-1])


def test_no_rows() -> None:
    linear = new()
    linear.pack(torch.randn(40, IN, dtype=torch.bfloat16), None)
    assert linear(torch.empty(0, IN, dtype=torch.bfloat16)).shape == (0, 40)


@pytest.mark.parametrize("out", [5, 40])
def test_nothing_is_written_beyond_the_result(kernels: library.Kernels, out: int) -> None:
    """The C call itself, on a weight packed here as linear.h says: [out / 16, in / 2, 16, 2]."""
    weight = torch.randn(out, IN, dtype=torch.bfloat16)
    packed = torch.zeros(-(-out // 16), IN // 2, 16, 2, dtype=torch.bfloat16)
    for o in range(out):
        packed[o // 16, :, o % 16] = weight[o].view(-1, 2)
    for rows in ROWS:
        x = torch.randn(rows, IN, dtype=torch.bfloat16)
        memory = torch.full((rows * out + 64,), 77, dtype=torch.bfloat16)
        at = memory[32:].data_ptr()
        kernels.linear(x.data_ptr(), IN, packed.data_ptr(), None, None, at, rows, IN, out, 1)
        assert memory[:32].eq(77).all()
        assert memory[32 + rows * out :].eq(77).all()
        check(memory[32 : 32 + rows * out].view(rows, out), x, weight, None)


# --- weights in 4 bits


def quantised(out: int, size: int) -> Tensor:
    """Random numbers as blocks of 32 give them back: low + step * n in float32 from half-precision scales, rounded."""
    values = torch.randn(out, size // 32, 32) * torch.rand(out, size // 32, 1)
    low = values.amin(-1, keepdim=True)
    step = (values.amax(-1, keepdim=True) - low) / 15
    numbers = ((values - low) / step).round()
    return (numbers * step.half() + low.half()).bfloat16().view(out, size)


def in_steps(weight: Tensor) -> tuple[WeightOp, bool]:
    linear = new()
    linear.pack(weight, None)
    return linear, linear._steps is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("out", [16, 40, 113])
def test_a_quantised_weight_is_kept_in_steps_and_not_one_value_differs(out: int) -> None:
    weight = quantised(out, 192)
    linear, kept = in_steps(weight)
    assert kept
    for at in range(192):
        x = torch.zeros(2, 192, dtype=torch.bfloat16)
        x[:, at] = 1
        assert torch.equal(linear(x[:1])[0], weight[:, at])
        assert torch.equal(linear(x)[1], weight[:, at])
    bias = torch.randn(out, dtype=torch.bfloat16)
    linear.pack(weight, bias)
    for rows in range(1, 9):
        x = torch.randn(rows, 192, dtype=torch.bfloat16)
        check(linear(x), x, weight, bias)


def test_blocks_of_one_value_and_of_two() -> None:
    weight = quantised(32, 96)
    weight[3, :32] = 0.7
    weight[5] = 0
    weight[7, 32:64] = -1.5
    weight[7, 40] = 2
    assert in_steps(weight)[1]


@pytest.mark.parametrize("value", [0.1234, -0.0, torch.inf, torch.nan])
@pytest.mark.parametrize("place", [(0, 0), (39, 95)])
def test_one_value_beside_the_steps_and_the_plain_form_serves(value: float, place: tuple[int, int]) -> None:
    weight = quantised(40, IN)
    assert in_steps(weight)[1]
    weight[place] = value
    linear, kept = in_steps(weight)
    assert not kept
    x = torch.zeros(1, IN, dtype=torch.bfloat16)
    x[0, place[1]] = 1
    assert torch.allclose(linear(x)[0].double(), weight[:, place[1]].double(), atol=0, rtol=0, equal_nan=True)


def test_after_a_reload_with_other_weights_no_steps_are_left() -> None:
    linear, kept = in_steps(quantised(40, IN))
    assert kept
    weight = torch.randn(40, IN, dtype=torch.bfloat16)
    linear.pack(weight, None)
    x = torch.randn(1, IN, dtype=torch.bfloat16)
    check(linear(x), x, weight, None)
