"""aiter's double in the library's place, and the conformance kit on MI300X and MI355X that are not here.

Small Triton kernels run in Triton's interpreter. On a machine with a GPU they cannot; these tests are left out there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from plugins.attention_aiter.tests.double import Double
from srtkit.spec.attention import LayerHandle, SlotMover
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.target import Target

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is declared, so before the plugin's are imported

DTYPES = frozenset({"float32", "bfloat16", "float16"})
FACTS = {
    "gfx942": DeviceFacts("rocm", "assumed MI300X", "gfx942", dtypes=DTYPES, fp8="e4m3fnuz"),
    "gfx950": DeviceFacts("rocm", "assumed MI355X", "gfx950", dtypes=DTYPES, fp8="e4m3fn"),
}


@pytest.fixture(params=["gfx942 0.1.7", pytest.param("gfx950 newer", marks=pytest.mark.full)])
def double(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    """What a backend is handed for aiter."""
    if torch.cuda.is_available():
        pytest.skip("the double is for a CPU")
    pytest.importorskip("triton", reason="Triton is not installed")
    from srtkit_plugin_attention_aiter import library, mha, mla

    architecture, version = request.param.split()
    made = Double(architecture, version == "newer")
    monkeypatch.setattr(library, "find", lambda part: made.library())
    monkeypatch.setattr(library, "architecture", lambda device: made.architecture)
    for module in (mha, mla):
        monkeypatch.setattr(module, "store", stored)
        monkeypatch.setattr(module, "PlaneMover", Mover)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield made
    torch.set_num_threads(before)


@pytest.fixture
def target(double: Double, tmp_path: Path) -> Target:
    """The plugin, told that its device is one of AMD's; tensors are on the CPU."""
    facts = FACTS[double.architecture]
    return replace(load_target(Subject("attention", "aiter"), suite_for("attention"), tmp_path), facts=facts)


@pytest.fixture
def harness(target: Target) -> Harness:
    """The suite's."""
    return Harness(target)


class Mover(SlotMover):
    """attention_triton's, without Triton."""

    def move_slots(self, layer: LayerHandle, source: Tensor, target: Tensor) -> None:
        for plane in layer.planes.values():
            bits = plane.view(torch.uint8)
            bits[_places(plane, target)] = bits[_places(plane, source)]


def stored(layer: LayerHandle, slots: Tensor, new: tuple[Tensor, Tensor]) -> None:
    """attention_triton's, without Triton: the interpreter is slow, has no e4m3fnuz, and rounds to e4m3fn wrongly."""
    for (name, plane), x in zip(layer.planes.items(), new, strict=True):
        value = x.reshape(len(x), *plane.shape[2:])
        if plane.dtype.itemsize == 1:
            scale = torch.ones(1) if layer.scales is None else layer.scales[name]
            largest = torch.finfo(plane.dtype).max
            value = (value.float() / scale.reshape(-1, 1)).clamp(-largest, largest)
        plane.view(torch.uint8)[_places(plane, slots)] = value.to(plane.dtype).view(torch.uint8)


def _places(plane: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    page = plane.shape[1]
    return slots.long() // page, slots.long() % page
