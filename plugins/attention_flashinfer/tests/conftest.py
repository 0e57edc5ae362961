"""FlashInfer's double in the module's place, and the conformance kit on a Hopper GPU that is not here.

Small Triton kernels run in Triton's interpreter. On a machine with a GPU they cannot, so these tests are left out there
and the suite runs on the card instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plugins.attention_flashinfer.tests import double
from plugins.attention_triton.tests.conftest import device as device  # it mends the interpreter
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.target import Target

HOPPER = DeviceFacts("cuda", "assumed H100", "sm90", dtypes=frozenset({"float32", "bfloat16", "float16"}), fp8="e4m3fn")


@pytest.fixture
def runs(device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[double.Log]:
    """The double is what `import flashinfer` gives; what ran, latest last."""
    if device != "cpu":
        pytest.skip("the double is for a CPU")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    log: double.Log = []
    monkeypatch.setitem(sys.modules, "flashinfer", double.module(log))
    yield log
    torch.set_num_threads(before)


@pytest.fixture
def target(runs: double.Log, tmp_path: Path) -> Target:
    """The plugin, told that its device is a Hopper GPU; tensors are on the CPU."""
    return replace(load_target(Subject("attention", "flashinfer"), suite_for("attention"), tmp_path), facts=HOPPER)


@pytest.fixture
def harness(target: Target) -> Harness:
    """The suite's."""
    return Harness(target)
