"""The operators held to their contract, on the GPU or in Triton's interpreter, and what is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from srtkit.engine import ops
from srtkit.spec.capabilities import No
from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.ops import OpFacts
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.check import Failed
from srtkit_conformance.find import Subject, load_target
from srtkit_plugin_ops_triton import MAX_HIDDEN, NAMES, accepts, build, srtkit_ops

SUITE = suite_for("ops")
CHECKS = [check for check in SUITE.checks() if check.level <= 2]
"""Above, a server would run in the interpreter."""
SLOW = {"ops.rope_strided", "ops.rows", "ops.any_size", "ops.sample", "ops.results_stay"}
"""There; strides and draws are tried below, too."""


@pytest.mark.parametrize(
    "check", [pytest.param(one, id=one.id, marks=[pytest.mark.full] * (one.id in SLOW)) for one in CHECKS]
)
def test_it_keeps_the_contract(check: object, device: str, tmp_path: Path) -> None:
    """Every check of the suite, in this process: the interpreter is chosen for a whole process."""
    target = load_target(Subject("ops", "triton", device), SUITE, tmp_path)
    try:
        check.body(target)  # type: ignore[attr-defined]
    except Failed as failure:
        pytest.fail(failure.message)


def test_q_and_k_may_be_slices_of_one_tensor(device: str) -> None:
    from srtkit_plugin_ops_triton.provider import rope

    torch.manual_seed(1)
    fused = torch.randn(5, 3 + 2 + 2, 16, device=device)
    before = fused.clone()
    angles = torch.rand(5, 1, 6, device=device) * 6
    cos, sin = (torch.cat(pair, -1) for pair in ((angles.cos(), angles.cos()), (-angles.sin(), angles.sin())))
    rope(fused[:, :3], fused[:, 3:5], cos, sin)
    turned = torch.view_as_complex(torch.stack((before[:, :5, :6], before[:, :5, 6:12]), -1).double())
    turned = turned * torch.polar(torch.ones_like(angles.double()), angles.double())
    assert torch.allclose(fused[:, :5, :6].double(), turned.real, atol=1e-5)
    assert torch.allclose(fused[:, :5, 6:12].double(), turned.imag, atol=1e-5)
    assert torch.equal(fused[:, :5, 12:], before[:, :5, 12:])
    assert torch.equal(fused[:, 5:], before[:, 5:])


def test_the_largest_norm(device: str) -> None:
    from srtkit_plugin_ops_triton.provider import rms_norm

    x = torch.linspace(-3, 4, MAX_HIDDEN, device=device).unsqueeze(0)
    weight = torch.ones(MAX_HIDDEN, device=device)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(rms_norm(x, weight, 1e-5).double(), exact, rtol=1e-5)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 33), (130, 1024), (3, 1500), (5, 4096)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_of_one_row_is_that_of_torch(device: str, n: int, k: int, bias: bool) -> None:
    """Sizes that are no multiple of a program's block, in float32, against float64."""
    from srtkit_plugin_ops_triton.linear import Linear

    torch.manual_seed(2)
    weight, x, b = torch.randn(n, k), torch.randn(1, k), torch.randn(n)
    linear = Linear()
    linear.pack(weight.to(device), b.to(device) if bias else None)
    exact = x.double() @ weight.double().T + (b.double() if bias else 0)
    assert torch.allclose(linear(x.to(device)).double().cpu(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "n", "k"), [(2, 40, 256), (5, 33, 384), (64, 32, 128)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_of_few_rows_is_that_of_torch(device: str, rows: int, n: int, k: int, bias: bool) -> None:
    """Blocks of outputs and splits of K that are not full, rows that are not dense; twice, and bit for bit the same."""
    from srtkit_plugin_ops_triton.linear import Linear, few_rows_blocks

    torch.manual_seed(2)
    weight, wide, b = torch.randn(n, k).half(), torch.randn(rows, k + 16).half(), torch.randn(n).half()
    x = wide[:, 8 : 8 + k]
    linear = Linear(few_rows=True)
    linear.pack(weight.to(device), b.to(device) if bias else None)
    first, again = (linear(wide.to(device)[:, 8 : 8 + k]) for _ in range(2))
    exact = x.double() @ weight.double().T + (b.double() if bias else 0)
    assert few_rows_blocks(n, k).splits == k // 128
    assert torch.allclose(first.double().cpu(), exact, rtol=2e-3, atol=2e-2)
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("rows", "k", "taken"), [(2, 128, True), (64, 128, True), (65, 128, False), (2, 130, False), (0, 128, False)]
)
def test_which_rows_are_few(monkeypatch: pytest.MonkeyPatch, rows: int, k: int, taken: bool) -> None:
    from srtkit_plugin_ops_triton import linear

    used = []
    monkeypatch.setattr(linear.Linear, "_of_few", lambda self, x, weight, arrived: used.append(x) or x)
    one = linear.Linear(few_rows=True)
    one.pack(torch.zeros(4, k), None)
    one(torch.zeros(rows, k))
    assert bool(used) == taken


@pytest.mark.parametrize(
    ("outputs", "rows", "taken"), [(1 << 17, 8, False), (1 << 17, 9, True), ((1 << 17) - 1, 2, True)]
)
def test_a_large_weight_stays_with_the_library_up_to_eight_rows(
    monkeypatch: pytest.MonkeyPatch, outputs: int, rows: int, taken: bool
) -> None:
    from srtkit_plugin_ops_triton import linear

    used = []
    monkeypatch.setattr(linear.Linear, "_of_few", lambda self, x, weight, arrived: used.append(x) or x)
    one = linear.Linear(few_rows=True)
    one.pack(torch.empty(outputs, 128, device="meta"), None)
    one(torch.empty(rows, 128, device="meta"))
    assert bool(used) == taken


@pytest.mark.parametrize(
    ("n", "k", "blocks"),
    [(1024, 2048, (32, 7, 4)), (4096, 14336, (32, 7, 1)), (6144, 1024, (64, 5, 1)), (28672, 4096, (128, 4, 1))],
)
def test_blocks_fill_a_card_once(n: int, k: int, blocks: tuple[int, int, int]) -> None:
    from srtkit_plugin_ops_triton.linear import few_rows_blocks

    assert few_rows_blocks(n, k) == blocks


@pytest.mark.parametrize(
    ("platform", "architecture", "dtype", "served"),
    [("cuda", "sm90", "bfloat16", True), ("cuda", "sm80", "bfloat16", False), ("cuda", "sm90", "float32", False),
     ("rocm", "gfx942", "bfloat16", False)],
)  # fmt: skip
def test_where_few_rows_have_a_kernel(platform: str, architecture: str, dtype: str, served: bool) -> None:
    from srtkit_plugin_ops_triton.linear import few_rows_of

    assert few_rows_of(OpFacts("linear", dtype, DeviceFacts(platform, "test", architecture), {})) == served


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(0.0, 0, 1.0, 0.0), (1.5, 0, 1.0, 0.2), (0.7, 5, 0.8, 0.0), (1.0, 0, 0.6, 0.3)],
)
def test_draws_are_those_of_the_reference(
    device: str, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """The same token, wherever the row stands in a batch."""
    from srtkit_plugin_ops_triton.sampling import sample

    torch.manual_seed(5)
    logits = torch.randn(2, 40, device=device).half().mul(2).repeat(2, 1)
    told = [torch.full((4,), one, device=device) for one in (temperature, top_k, top_p, min_p)]
    told += [torch.tensor([-7, 8, -7, 8], device=device), torch.tensor([3, 2**20, 3, 2**20], device=device)]
    drawn = sample(logits, *told)
    assert torch.equal(drawn, ops.sample(logits, *told))
    assert torch.equal(drawn[:2], drawn[2:])


@pytest.mark.full
@pytest.mark.parametrize("architecture", ["sm90", "gfx942"])
def test_every_kernel_compiles(architecture: str) -> None:
    """For GPUs that are not here, without a register spilled. The interpreter lets pass what no compiler does."""
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "plugins.ops_triton.tests.compiled", architecture]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spilled = [int(number) for number in re.findall(r"(\d+) spilled", done.stdout)]
    assert len(spilled) >= 2 * len(NAMES), done.stdout
    assert not any(spilled), done.stdout


def reason(op: str, dtype: str, platform: str, **sizes: int) -> str:
    answer = accepts(OpFacts(op, dtype, DeviceFacts(platform, "test", "test"), sizes))
    assert isinstance(answer, No)
    return answer.reason


def test_what_is_refused() -> None:
    for name in NAMES:
        assert accepts(OpFacts(name, "bfloat16", DeviceFacts("cuda", "test", "sm90"), {"hidden": 4096}))
    assert "norms of up to" in reason("rms_norm", "float16", "cuda", hidden=MAX_HIDDEN + 1)
    assert "bfloat16 on cpu" in reason("rope", "bfloat16", "cpu")
    assert "fakedev" in reason("rope", "float32", "fakedev")
    assert "has no sort" in reason("sort", "float32", "cuda")


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(DeviceAbsent, match="pip install triton"):
        build(None)  # type: ignore[arg-type]


def test_the_descriptor_imports_neither_torch_nor_triton() -> None:
    assert srtkit_ops().names == NAMES
    code = (
        "import sys, srtkit_plugin_ops_triton as p; p.srtkit_ops(); "
        "sys.exit(bool({'torch', 'triton'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
