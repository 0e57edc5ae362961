"""Facts from files as the driver writes them, defaults and refusals; nothing here runs on an AMD GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import srtkit_plugin_platform_rocm as plugin
from plugins.platform_rocm.tests.machine import write_machine
from srtkit.spec.capabilities import NoOptions
from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.platform import PlatformBuild
from srtkit_conformance.inside import shortcomings
from srtkit_plugin_platform_rocm import topology
from srtkit_plugin_platform_rocm.platform import Built, refuse

HERE = torch.version.hip is not None and torch.cuda.is_available()


def test_facts_from_the_drivers_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_machine(tmp_path, gpus=2)
    monkeypatch.setattr(plugin, "visible", lambda: topology.visible(tmp_path))
    (facts,) = plugin.probe(NoOptions())
    assert (facts.name, facts.architecture, facts.count) == ("AMD Instinct MI300X", "gfx942", 2)
    assert (facts.memory_bytes, facts.fp8, facts.peer_access) == (192 << 30, "e4m3fnuz", True)
    assert facts.extra == {"compute_units": "304", "lds_kib": "64", "wavefront": "64", "device_id": "0x74a1"}


def test_gpus_of_two_kinds_are_two_entries_the_first_one_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_machine(tmp_path, gpus=1, version=90500, device_id=0x75A3, linked=False)
    write_machine(tmp_path, gpus=1, first=12, version=110000, device_id=0x744C, linked=False)
    monkeypatch.setattr(plugin, "visible", lambda: topology.visible(tmp_path))
    first, second = plugin.probe(NoOptions())
    assert (first.name, first.fp8, first.extra["lds_kib"], first.peer_access) == (
        "AMD Instinct MI355X",
        "e4m3fn",
        "160",
        False,
    )
    assert (second.name, second.architecture, second.fp8) == ("AMD GPU 0x744c", "gfx1100", None)
    assert plugin.defaults(second).plugins["attention"] == ("triton", "torch")


def test_a_gpu_that_a_container_may_not_read_is_none_of_ours(tmp_path: Path) -> None:
    write_machine(tmp_path, gpus=2)
    (tmp_path / topology.NODES / "2/properties").unlink()  # the kernel answers EPERM: nothing is read
    (gpu,) = topology.visible(tmp_path)
    assert gpu.node == 1 and not topology.linked([gpu])
    assert topology.visible(tmp_path / "no such machine") == ()


def test_names_of_architectures() -> None:
    versions = {90402: "gfx942", 90500: "gfx950", 90010: "gfx90a", 110000: "gfx1100", 120001: "gfx1201"}
    assert {version: topology.architecture(version) for version in versions} == versions


def test_assumed_cards() -> None:
    mi300x, mi355x = plugin.assume("gfx942"), plugin.assume("gfx950")
    assert mi300x is not None and mi355x is not None and plugin.assume("gfx90a") is None
    assert (mi300x.fp8, mi300x.extra["lds_kib"], mi300x.extra["memory_gbps"]) == ("e4m3fnuz", "64", "5300")
    assert (mi355x.fp8, mi355x.extra["lds_kib"], mi355x.memory_bytes) == ("e4m3fn", "160", 288 << 30)
    defaults = plugin.defaults(mi300x)
    assert defaults.plugins["attention"] == ("aiter", "triton", "torch")
    assert defaults.plugins["graph_runner"] == ("cuda-full", "cuda-piecewise", "eager")
    assert plugin.defaults(mi355x).plugins["attention"] == defaults.plugins["attention"]
    assert defaults.environment == {"HIP_FORCE_DEV_KERNARG": "1"}
    assert plugin.srtkit_platform().architectures == ("gfx942", "gfx950")


@pytest.mark.parametrize(
    ("built", "index", "cause"),
    [
        (Built("2.13.0+cpu", None, (), ()), 0, r"2\.13\.0\+cpu, was built without ROCm"),
        (Built("2.13.0", "7.1", ("gfx942",), ()), 0, "finds no GPU"),
        (Built("2.13.0", "7.1", ("gfx942",), ("gfx942:sramecc+:xnack-",)), 1, "no device 1: torch finds 1"),
        (Built("2.11.0", "6.4", ("gfx90a", "gfx942"), ("gfx950:xnack-",)), 0, "no kernels for gfx950, only for gfx90a"),
    ],
)
def test_a_torch_that_cannot_is_named(built: Built, index: int, cause: str) -> None:
    with pytest.raises(DeviceAbsent, match=cause):
        refuse(built, index)


def test_a_torch_that_can_is_not_refused() -> None:
    refuse(Built("2.13.0", "7.1", ("gfx942", "gfx950"), ("gfx942:sramecc+:xnack-",)), 0)


def test_without_a_gpu_there_is_no_device() -> None:
    if HERE:
        pytest.skip("there is an AMD GPU here")
    assert list(plugin.probe(NoOptions())) == []
    facts = plugin.assume("gfx942")
    assert facts is not None
    with pytest.raises(DeviceAbsent):
        plugin.build(PlatformBuild(facts, NoOptions()))


@pytest.mark.skipif(not HERE, reason="there is no AMD GPU here")
def test_it_keeps_the_contract() -> None:
    assert shortcomings("platform:rocm", level=2) == []


def test_the_descriptor_imports_no_torch() -> None:
    code = (
        "import sys, srtkit_plugin_platform_rocm as p; from srtkit.spec.capabilities import NoOptions; "
        "p.probe(NoOptions()); p.examine({}); p.srtkit_platform(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
