"""Attention under the suite, with every instruction set; what the backend refuses."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from srtkit.spec.attention import AttentionBuild, AttentionSpec, LayerGroup
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.kv import nhd_layout
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.inside import shortcomings
from srtkit_conformance.kits.attention.case import rows_of
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_plugin_cpu_native import library
from srtkit_plugin_cpu_native.attention import HEAD_DIMS, Options, build, capabilities, kv_layouts

CPU = DeviceFacts("cpu", "test", "x86_64")
SPEC = AttentionSpec(4, 2, 64, 64, scale=0.125, dtype="bfloat16", kv_dtype="bfloat16")


def building(spec: AttentionSpec) -> AttentionBuild:
    layout = nhd_layout(16, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.kv_dtype)
    limits = Limits(max_rows=4, max_tokens=8, max_context=64, page_size=16)
    return AttentionBuild(LayerGroup("full.0", spec, (0,)), layout, limits, None, 0, Options())  # type: ignore[arg-type]


# An option is named, so that the suite runs in this process, which has the fixture's kernels.


def test_it_keeps_the_contract(kernels: library.Kernels) -> None:
    assert shortcomings("attention:cpu-native", level=2, share_prefixes=True) == []


def test_so_it_does_without_looking_for_common_prefixes() -> None:
    if library.load() is None:
        pytest.skip("there was no compiler")
    assert shortcomings("attention:cpu-native", level=2, share_prefixes=False) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_head_size(kernels: library.Kernels, dtype: str, tmp_path: Path) -> None:
    """Prompts and decode, with so few queries for a KV head that K and V are read as they stand, and with more."""
    harness = Harness(load_target(Subject("attention", "cpu-native"), suite_for("attention"), tmp_path))
    for size in HEAD_DIMS:
        for ratio in (1, 4, 7):
            rows = rows_of((70, 1), (3, 1), (0, 37), (150, 5))
            case = harness.case(rows, dtype=dtype, head_dim=size, ratio=ratio, kv_heads=2, page=7, leading=2)
            Step(harness.rig(case), case).run().check(Margins())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kv_dtype": "float32"}, "not in float32"),
        ({"v_head_dim": 32}, "of one size"),
        ({"window": 8, "causal": False}, "without a causal mask"),
        ({"head_dim": 72, "v_head_dim": 72}, "head size 72"),
        ({"q_heads": 130}, "130 query heads"),
    ],
)
def test_what_it_cannot_do_is_refused_at_build(change: dict[str, object], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        build(building(replace(SPEC, **change)))  # type: ignore[arg-type]


def test_a_processor_without_kernels_is_an_absent_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load", lambda: None)
    with pytest.raises(DeviceAbsent, match="no kernels for this processor"):
        build(building(SPEC))


def test_layouts() -> None:
    (layout,) = kv_layouts(SPEC, 16, CPU)
    assert layout.name == "nhd/1"
    assert kv_layouts(SPEC, 257, CPU) == ()
    assert kv_layouts(replace(SPEC, v_head_dim=32), 16, CPU) == ()
    assert kv_layouts(replace(SPEC, kv_dtype="float32"), 16, CPU) == ()


def test_it_computes_on_the_cpu_only() -> None:
    assert capabilities(CPU).dtypes == {"bfloat16", "float32"}
    assert not capabilities(DeviceFacts("cuda", "test", "sm90")).dtypes


def test_one_openmp_serves_torch_and_the_kernels() -> None:
    """In a process of its own: other libraries that tests import bring theirs."""
    code = (
        "import torch; from srtkit_plugin_cpu_native import library; library.load(); torch.ones(1 << 16).add_(1);"
        "print(len({line.split()[-1] for line in open('/proc/self/maps') if '/libgomp' in line}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
