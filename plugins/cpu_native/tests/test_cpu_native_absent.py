"""An installation that had no compiler: what is said, and who serves instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from srtkit.engine.ops import Binder, Offer
from srtkit.spec.capabilities import No, NoOptions
from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.ops import OpFacts, OpsBuild
from srtkit_plugin_cpu_native import NOT_BUILT, attention, library, ops

CPU = DeviceFacts("cpu", "test", "x86_64", extra={"isa": "avx512_bf16 avx2"})


@pytest.fixture
def not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No library where it should be."""
    for module in (attention, ops, library):
        monkeypatch.setattr(module, "LIBRARY", tmp_path / "_kernels.so")
    monkeypatch.setattr(library, "_open", library._open.__wrapped__)
    monkeypatch.setattr(library, "load", library.load.__wrapped__)


@pytest.mark.usefixtures("not_built")
def test_attention_is_an_absent_device_with_a_remedy() -> None:
    with pytest.raises(DeviceAbsent) as absent:
        attention.srtkit_attention()
    assert absent.value.part == "attention:cpu-native"
    assert absent.value.cause == NOT_BUILT
    assert "install GCC" in absent.value.remedy


@pytest.mark.usefixtures("not_built")
def test_operators_go_to_the_next_provider_and_explain_says_why() -> None:
    descriptor = ops.srtkit_ops()
    given = OpsBuild(None, 0, Limits(1, 8, 64, 16), NoOptions())  # type: ignore[arg-type]
    offer = Offer("cpu-native", descriptor, descriptor.build(given))
    binder = Binder([offer], CPU)
    norm = binder.op("rms_norm", "bfloat16", hidden=32)
    binder.weight_op("linear", "bfloat16", **{"in": 32, "out": 8})
    assert norm(torch.ones(1, 32, dtype=torch.bfloat16), torch.ones(32, dtype=torch.bfloat16), 0.0).eq(1).all()
    assert set(binder.choices.values()) == {f"torch (cpu-native: {NOT_BUILT})"}
    for name in ops.NAMES:
        assert ops.accepts(OpFacts(name, "bfloat16", CPU)) == No(NOT_BUILT)
        with pytest.raises(DeviceAbsent, match=f"has no {name} for this processor"):
            offer.provider.bind(OpFacts(name, "bfloat16", CPU))


@pytest.mark.parametrize("module", ["attention", "ops"])
def test_the_descriptor_imports_no_torch_and_opens_no_library(module: str) -> None:
    code = (
        f"import sys; from srtkit_plugin_cpu_native.{module} import srtkit_{module} as hook\n"
        "try: hook()\n"
        "except Exception as error: assert type(error).__name__ == 'DeviceAbsent'\n"
        "assert not {'torch', 'srtkit_plugin_cpu_native.library'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
