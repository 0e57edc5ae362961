"""The suite on an AMD GPU that is not here: tensors are on the CPU, aiter is its double, or its own Triton kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plugins.ops_aiter.tests import double
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.target import Target
from srtkit_plugin_ops_aiter import library
from tools import aiter_wheel

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is declared, so before aiter's are imported


def facts(architecture: str, dtypes: frozenset[str] = frozenset({"float32", "bfloat16", "float16"})) -> DeviceFacts:
    """Of an AMD GPU."""
    return DeviceFacts("rocm", f"assumed {architecture}", architecture, dtypes=dtypes)


MACHINES = {"gfx942": double.OLD, "gfx950": double.HEAD}
"""Which aiter there is on which GPU."""


@pytest.fixture(params=MACHINES)
def architecture(request: pytest.FixtureRequest) -> str:
    """Of the AMD GPU that is not here."""
    return str(request.param)


@pytest.fixture
def calls(architecture: str, monkeypatch: pytest.MonkeyPatch) -> double.Log:
    """The double is installed, in a torch for ROCm; what was called, latest last."""
    log: double.Log = []
    for name, module in double.modules(MACHINES[architecture], log).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(library, "version", lambda name: "0.1.7.post2.dev18")
    return log


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """The plugin."""
    return load_target(Subject("ops", "aiter"), suite_for("ops"), tmp_path_factory.mktemp("ops-aiter"))


@pytest.fixture
def target(architecture: str, loaded: Target) -> Target:
    """The plugin, told that its device is an AMD GPU."""
    return replace(loaded, facts=facts(architecture))


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The Python files of the wheel that the plugin's extra names; fetched once."""
    try:
        return aiter_wheel.fetch()
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"amd-aiter {aiter_wheel.VERSION} cannot be had from a package index here: {error}")


@pytest.fixture
def triton_library(wheel: Path) -> Iterator[library.Library]:
    """aiter's own Triton kernels with the parameters of the functions that the plugin calls: norms and rotation."""
    pytest.importorskip("triton", reason="Triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("these tensors are on the CPU: bench/gpu/aiter_triton.py runs the kernels on a card")
    with aiter_wheel.triton_modules(wheel) as modules:
        norms, rope = modules.load("rmsnorm"), modules.load("rope").rope_cached_positions_fwd_inplace

        def both(**given: object) -> None:
            x, y = given.pop("input_x"), given.pop("input_y")
            rope(x, **given)
            rope(y, **given)

        found = dict.fromkeys(library.FUNCTIONS) | {
            "rms_norm": norms.rms_norm,
            "rmsnorm2d_fwd_with_add": norms.rmsnorm2d_fwd_with_add,
            "rope_cached_positions_2c_fwd_inplace": both,
        }
        yield library.Library("Triton", **found)  # type: ignore[arg-type]
