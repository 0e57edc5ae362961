"""The operators over aiter's double and over aiter's own Triton kernels; what is refused; what is called."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from plugins.ops_aiter.tests import double, record
from plugins.ops_aiter.tests.conftest import MACHINES, facts
from srtkit.spec.capabilities import No
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.ops import OpFacts
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.check import Failed
from srtkit_conformance.target import Target
from srtkit_plugin_cli_debug import calls as recorded_calls
from srtkit_plugin_cli_debug.signatures import of_folder
from srtkit_plugin_ops_aiter import NAMES, PART, accepts, library, srtkit_ops
from srtkit_plugin_ops_aiter.library import FUNCTIONS, Library, find
from srtkit_plugin_ops_aiter.provider import AiterExperts, AiterOps
from tools import aiter_wheel

CPU = torch.device("cpu")
CHECKS = {check.id: check for check in suite_for("ops").checks() if 1 <= check.level <= 2}
"""Level 0 is of the package alone, without a device: `make certificates`."""


@pytest.mark.parametrize("check", CHECKS)
def test_it_keeps_the_contract_over_the_double(calls: double.Log, target: Target, check: str) -> None:
    try:
        CHECKS[check].body(target)
    except Failed as failure:
        pytest.fail(failure.message)


# --- calls that are wrong, and the checks of the suite that tell


def _changed(function: str, **changes: Callable[[Any], Any]) -> Callable[[Library], Library]:
    """The library as if the plugin gave other arguments to one of its functions."""

    def wrong(right: Library) -> Library:
        called = vars(right)[function]

        def call(**given: Any) -> Any:
            return called(**given | {name: change(given[name]) for name, change in changes.items()})

        return replace(right, **{function: call})

    return wrong


def _only_marked(x: torch.Tensor) -> torch.Tensor:
    """As shuffled, and is not."""
    marked = x.clone()
    marked.is_shuffled = True  # type: ignore[attr-defined]
    return marked


ROPE = "rope_cached_positions_2c_fwd_inplace"
ADD = "rmsnorm2d_fwd_with_add"
WRONG = {
    "negated sines": ("ops.rope", _changed(ROPE, positions=lambda rows: rows - 1)),
    "the next token's angles": ("ops.rope", _changed(ROPE, positions=lambda rows: rows + 2)),
    "neighbours are paired": ("ops.rope", _changed(ROPE, rotate_style=lambda style: 1)),
    "the end of a head is turned": ("ops.rope", _changed(ROPE, nope_first=lambda first: True)),
    "q is a copy": ("ops.rope_strided", _changed(ROPE, input_x=torch.clone)),
    "the residual is a copy": ("ops.add_rms_norm", _changed(ADD, residual_out=torch.clone)),
    "the sum of the residual alone": ("ops.add_rms_norm", _changed(ADD, input=torch.zeros_like)),
    "no epsilon": ("ops.rms_norm", _changed("rms_norm", epsilon=lambda eps: 0.0)),
    "weights as over all": ("ops.route", _changed("topk_softmax", need_renorm=lambda renorm: False)),
    "another's weights": ("ops.experts", _changed("fused_moe", topk_weight=lambda weights: weights.flip(-1))),
    "experts as loaded": ("ops.experts", lambda right: replace(right, shuffle_weight=_only_marked)),
    "gate is up": ("ops.silu_mul", _changed("silu_and_mul", input=lambda x: torch.cat(x.chunk(2, -1)[::-1], -1))),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_suite_finds_a_wrong_call(
    calls: double.Log, target: Target, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, change = WRONG[name]
    monkeypatch.setattr(library, "find", lambda: change(find()))
    with pytest.raises(Failed):
        CHECKS[check].body(target)


def test_a_later_aiter_must_see_that_weights_are_shuffled(
    calls: double.Log, target: Target, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an attribute, which a copy does not have. The version on the index does not look for it."""
    right = find()
    wrong = replace(right, shuffle_weight=lambda x: right.shuffle_weight(x=x).clone())
    monkeypatch.setattr(library, "find", lambda: wrong)
    if MACHINES[architecture] == double.HEAD:
        with pytest.raises(Failed):
            CHECKS["ops.experts"].body(target)
    else:
        CHECKS["ops.experts"].body(target)


def test_a_step_without_tokens_calls_nothing(calls: double.Log) -> None:
    ops, none = AiterOps(find(), CPU, 8), torch.empty(0, 16, dtype=torch.float16)
    heads, angles = none.view(0, 2, 8), none.view(0, 1, 16)
    assert ops.rms_norm(none, none[0:], 1e-5).shape == ops.add_rms_norm(none, none, none, 1e-5).shape == (0, 16)
    assert ops.silu_mul(none).shape == (0, 8)
    ops.rope(heads, heads, angles, angles)
    weights, experts = ops.route(none, 2, True)
    assert weights.shape == experts.shape == (0, 2)
    assert AiterExperts(find())(none, weights, experts).shape == (0, 16)
    assert not calls


def test_rows_that_are_strided_are_not_copied_for_a_norm(calls: double.Log) -> None:
    wide = torch.randn(3, 48, dtype=torch.float16)
    x = wide[:, 16:32]
    AiterOps(find(), CPU, 8).rms_norm(x, torch.ones(16, dtype=torch.float16), 1e-5)
    assert calls[-1][1]["input"].data_ptr() == x.data_ptr()


# --- the signatures that were recorded, and those of the wheel


@pytest.mark.parametrize("version", double.TABLE)
def test_the_table_holds_every_function_that_is_called(version: str) -> None:
    called = {f"{module.replace('.', '/')}.py:{name}" for name, module in FUNCTIONS.items()}
    assert set(double.TABLE[version]) == called


def test_every_argument_is_given_by_keyword(calls: double.Log, target: Target) -> None:
    """The double binds what it is given to the recorded parameters; here: nothing relies on an order."""
    for one in ("ops.rms_norm", "ops.add_rms_norm", "ops.silu_mul", "ops.rope", "ops.route", "ops.experts"):
        CHECKS[one].body(target)
    assert {name for name, _ in calls} == set(FUNCTIONS)
    for name, given in calls:
        parameters = double.signature(double.TABLE[double.OLD][f"{FUNCTIONS[name].replace('.', '/')}.py:{name}"])
        required = {one.name for one in parameters.parameters.values() if one.default is one.empty}
        assert set(given) == required


@pytest.mark.full
def test_the_wheel_defines_what_was_recorded(wheel: Path) -> None:
    recorded = double.TABLE[aiter_wheel.VERSION]
    assert of_folder(wheel, recorded) == recorded


# --- the calls that were recorded


def test_the_recorded_calls_are_those_that_the_plugin_makes(calls: double.Log) -> None:
    """Over the double they are right; one of another style of rotation is not."""
    assert recorded_calls.check(PART, "cpu") == 0
    assert {(name, *sorted(given)) for name, given in calls} == {
        (one.function.partition(":")[2], *sorted({**one.tensors, **one.plain})) for one in record.calls()
    }
    rope = sys.modules["aiter.ops.rope"]
    right = vars(rope)[ROPE]
    vars(rope)[ROPE] = lambda **given: right(**given | {"rotate_style": 1})
    assert recorded_calls.check(PART, "cpu") == 1


# --- aiter's own Triton kernels, in Triton's interpreter


@pytest.mark.full
@pytest.mark.parametrize("check", ["ops.rms_norm", "ops.add_rms_norm"])
def test_aiters_triton_norms_keep_the_contract(
    triton_library: Library, target: Target, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float16: the interpreter is wrong in bfloat16."""
    monkeypatch.setattr(library, "find", lambda: triton_library)
    outcome = CHECKS[check].body(replace(target, facts=facts("gfx942", frozenset({"float16"}))))
    assert isinstance(outcome, dict), outcome


@pytest.mark.full
def test_aiters_triton_rotation_is_the_doubles(triton_library: Library, calls: double.Log) -> None:
    """With the plugin's tables and row numbers, on slices of one tensor."""
    torch.manual_seed(0)
    angles = torch.rand(3, 1, 8) * 6
    cos, sin = angles.cos(), angles.sin()
    tables = [torch.cat(pair, -1).half() for pair in ((cos, cos), (-sin, sin))]
    fused = torch.randn(3, 4, 16).half()
    turned = []
    for aiter in (triton_library, find()):
        one = fused.clone()
        AiterOps(aiter, CPU, 8).rope(one[:, :2], one[:, 2:3], *tables)
        turned.append(one)
    assert torch.allclose(*turned, atol=4e-3)
    assert not torch.allclose(turned[0][:, :3], fused[:, :3], atol=0.1)
    assert torch.equal(turned[0][:, 3], fused[:, 3])


# --- what is refused


def reason(op: str, dtype: str, device: DeviceFacts, **sizes: int) -> str:
    answer = accepts(OpFacts(op, dtype, device, sizes))
    assert isinstance(answer, No)
    return answer.reason


def test_what_is_accepted() -> None:
    for name in NAMES:
        sizes = {"hidden": 4096, "experts": 128, "per_token": 8, "size": 1536}
        assert accepts(OpFacts(name, "bfloat16", facts("gfx950"), sizes))
    for count in (60, 512):
        assert f"not among {count}" in reason("route", "float16", facts("gfx942"), experts=count, per_token=2)
    for sizes in ({"hidden": 2048, "size": 192}, {"hidden": 2880, "size": 768}):
        assert "tiles of 128" in reason("experts", "bfloat16", facts("gfx942"), experts=8, per_token=2, **sizes)
    large = {"experts": 256, "per_token": 8, "hidden": 7168, "size": 2048}
    assert "in 32 bits" in reason("experts", "bfloat16", facts("gfx950"), **large)
    assert "vectors of 16" in reason("silu_mul", "float16", facts("gfx942"), hidden=72)
    assert reason("rope", "float32", facts("gfx942")) == "has no float32"
    assert reason("norm_rope", "float16", facts("gfx942")) == "has no norm_rope"
    assert "not for rocm gfx90a" in reason("rms_norm", "float16", facts("gfx90a"))
    assert "not for cuda sm90" in reason("rms_norm", "float16", DeviceFacts("cuda", "test", "sm90"))


def test_without_rocm_it_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    with pytest.raises(DeviceAbsent, match="not built for ROCm"):
        find()


@pytest.mark.parametrize("version", ["0.1.6.post1", "0.0.0+unknown"])
def test_older_ones_are_refused(calls: double.Log, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(library, "version", lambda name: version)
    with pytest.raises(Unsupported, match=r"too old; 0\.1\.7"):
        find()


def test_what_is_missing_is_named(calls: double.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["aiter.ops.rope"], ROPE)
    with pytest.raises(Unsupported, match=f"has no {ROPE}"):
        find()
    monkeypatch.setitem(sys.modules, "aiter.ops.rope", None)
    with pytest.raises(DeviceAbsent, match="cannot be imported"):
        find()


def test_the_descriptor_imports_neither_torch_nor_aiter() -> None:
    assert srtkit_ops().names == NAMES
    code = (
        "import sys, srtkit_plugin_ops_aiter as p; p.srtkit_ops(); "
        "sys.exit(bool({'torch', 'aiter'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
