"""The CPU operators against float64, on the shapes of a step: one row, some rows, slices of a fused buffer."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import cast

import pytest
import torch
from torch import Tensor

from srtkit.spec.capabilities import No
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.ops import OpFacts, WeightOp
from srtkit_plugin_ops_cpu import NAMES, accepts, srtkit_ops
from srtkit_plugin_ops_cpu.provider import CpuOps, add_rms_norm, rms_norm, rope, silu_mul

CPU = DeviceFacts("cpu", "test", "x86_64", extra={"isa": "avx512_bf16 avx512f avx2"})
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3}
NAME = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
DTYPES = list(TOLERANCE)
PACKED = DTYPES if torch.ops.mkldnn._is_mkldnn_bf16_supported() else [torch.float32]
"""What this machine packs; elsewhere `accepts` refuses."""
ROWS = [1, 2, 33]


def near(ours: Tensor, exact: Tensor) -> bool:
    return bool((ours.double() - exact.double()).norm() <= TOLERANCE[ours.dtype] * exact.double().norm())


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
def test_norms(dtype: torch.dtype, rows: int) -> None:
    x, residual, weight = (
        torch.randn(rows, 576).mul(4).to(dtype),
        torch.randn(rows, 576).to(dtype),
        torch.randn(576).to(dtype),
    )
    assert near(rms_norm(x, weight, 0.5), norm(x, weight, 0.5))
    total, before = x + residual, x.clone()
    assert near(add_rms_norm(x, residual, weight, 1e-5), norm(total, weight, 1e-5))
    assert torch.equal(residual, total)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
def test_silu_mul(dtype: torch.dtype, rows: int) -> None:
    gate_up = torch.randn(rows, 2 * 31).mul(4).to(dtype)
    before = gate_up.clone()
    gate, up = gate_up.double().chunk(2, -1)
    assert near(silu_mul(gate_up), gate / (1 + (-gate).exp()) * up)
    assert torch.equal(gate_up, before)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Dimension i and i + R / 2 are one complex number, turned by the angle; float64."""
    half = angles.shape[1]
    pairs = torch.complex(x.double()[..., :half], x.double()[..., half : 2 * half])
    pairs = pairs * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    return torch.cat((pairs.real, pairs.imag, x.double()[..., 2 * half :]), -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("rotary", [16, 12], ids=["whole head", "part of the head"])
@pytest.mark.parametrize("form", ["fused", "apart", "reversed", "odd strides"])
def test_rope(dtype: torch.dtype, rows: int, rotary: int, form: str) -> None:
    fused = torch.randn(rows, 3 + 2 + 2, 16).to(dtype)
    q, k = fused[:, :3], fused[:, 3:5]
    if form == "apart":
        q, k = q.clone(), k.clone()
    elif form == "reversed":
        k, q = fused[:, :2], fused[:, 2:5]
    elif form == "odd strides":
        q, k = fused[:, 0:6:2], fused[:, 1:5:2]
    rest = fused[:, 5:].clone()
    angles = torch.rand(rows, rotary // 2, dtype=torch.float64) * 2 * math.pi
    exact_q, exact_k = turned(q, angles), turned(k, angles)
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    rope(q, k, torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))
    assert near(q, exact_q)
    assert near(k, exact_k)
    if form == "fused":
        assert torch.equal(fused[:, 5:], rest)


@pytest.mark.parametrize("dtype", PACKED)
@pytest.mark.parametrize("bias", [False, True])
def test_packed_linear(dtype: torch.dtype, bias: bool) -> None:
    weight, offset = torch.randn(80, 48).to(dtype), torch.randn(80).to(dtype)
    linear = cast(WeightOp, CpuOps().bind(OpFacts("linear", NAME[dtype], CPU, {"in": 48, "out": 80})))
    assert not linear.keeps_weight
    for scale in (1.0, 2.0):  # packed again after a reload
        given = weight * scale
        linear.pack(given, offset if bias else None)
        given.fill_(float("nan"))  # the caller drops it
        for rows in ROWS:
            x = torch.randn(rows, 48).to(dtype)
            exact = x.double() @ weight.double().T * scale + (offset.double() if bias else 0)
            assert near(linear(x), exact)


def test_what_is_accepted() -> None:
    for name in NAMES:
        assert accepts(OpFacts(name, "bfloat16", CPU))
        assert accepts(OpFacts(name, "float32", CPU))
        assert reason(name, "float16", CPU) == "has no float16"
        assert "not for cuda" in reason(name, "float32", DeviceFacts("cuda", "test", "sm90"))


def test_linears_are_packed_where_onednn_can() -> None:
    old = DeviceFacts("cpu", "test", "x86_64", extra={"isa": "avx2"})
    arm = DeviceFacts("cpu", "test", "aarch64", extra={"isa": "bf16 sve asimd"})
    assert accepts(OpFacts("linear", "float32", old))
    assert accepts(OpFacts("rms_norm", "bfloat16", old))
    assert "AVX-512" in reason("linear", "bfloat16", old)
    assert accepts(OpFacts("rms_norm", "bfloat16", arm))
    assert "aarch64" in reason("linear", "float32", arm)


def reason(op: str, dtype: str, device: DeviceFacts) -> str:
    answer = accepts(OpFacts(op, dtype, device))
    assert isinstance(answer, No)
    return answer.reason


def test_the_descriptor_imports_no_torch() -> None:
    code = "import sys, srtkit_plugin_ops_cpu as p; p.srtkit_ops(); sys.exit('torch' in sys.modules)"
    env = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=env).returncode == 0


def test_what_is_named_can_be_bound() -> None:
    ops = CpuOps()
    for name in srtkit_ops().names:
        assert callable(ops.bind(OpFacts(name, "float32", CPU, {"in": 8, "out": 8})))
