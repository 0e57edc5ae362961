"""Facts from a driver that is not there, defaults and refusals anywhere; the contract where there is a GPU."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import srtkit_plugin_platform_cuda as plugin
from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.platform import PlatformBuild
from srtkit_conformance.inside import shortcomings
from srtkit_plugin_platform_cuda.driver import Found, Gpu, ask
from srtkit_plugin_platform_cuda.nvidia import refuse

GPU = Gpu("Card", "sm90", 80 << 30, 132)
HERE = torch.cuda.is_available()


@dataclass
class Driver:
    """The driver's library as ctypes sees it: codes, and values written where a pointer leads."""

    count: int = 2
    start: int = 0
    version: int = 13010
    peer: int = 1

    def _write(self, pointer: Any, value: int) -> int:
        pointer._obj.value = value
        return 0

    def cuInit(self, flags: int) -> int:  # noqa: N802 - names of the library
        return self.start

    def cuDriverGetVersion(self, pointer: Any) -> int:  # noqa: N802
        return self._write(pointer, self.version)

    def cuDeviceGetCount(self, pointer: Any) -> int:  # noqa: N802
        return self._write(pointer, self.count)

    def cuDeviceGetName(self, buffer: ctypes.Array[ctypes.c_char], length: int, index: int) -> int:  # noqa: N802
        buffer.value = b"Card"
        return 0

    def cuDeviceTotalMem_v2(self, pointer: Any, index: int) -> int:  # noqa: N802
        return self._write(pointer, 80 << 30)

    def cuDeviceGetAttribute(self, pointer: Any, which: int, index: int) -> int:  # noqa: N802
        return self._write(pointer, {16: 132, 75: 9, 76: 0}[which])

    def cuDeviceCanAccessPeer(self, pointer: Any, one: int, other: int) -> int:  # noqa: N802
        return self._write(pointer, self.peer)


def test_facts_of_the_driver() -> None:
    assert ask(Driver()) == Found((GPU, GPU), (13, 1), peers=True)
    assert not ask(Driver(peer=0)).peers
    assert not ask(Driver(count=1)).peers


@pytest.mark.parametrize(
    ("driver", "problem"),
    [(Driver(start=100), "sees no GPU"), (Driver(start=803), "CUDA error 803"), (Driver(count=0), "VISIBLE_DEVICES")],
)
def test_a_driver_without_a_device_says_why(driver: Driver, problem: str) -> None:
    here = ask(driver)
    assert problem in here.problem
    with pytest.raises(DeviceAbsent, match=problem):
        refuse(here, 0)


def test_facts_by_architecture() -> None:
    facts = plugin.facts_of(GPU, 2, Found((GPU, GPU), (13, 1), peers=True))
    assert (facts.count, facts.peer_access, facts.fp8, facts.extra["cuda"]) == (2, True, "e4m3fn", "13.1")
    ampere, turing = plugin.assume("sm80"), plugin.assume("sm75")
    assert ampere is not None and turing is not None and plugin.assume("sm81") is None
    assert ampere.fp8 is None and "bfloat16" in ampere.dtypes
    assert plugin.defaults(ampere).plugins["attention"] == ("triton", "torch")
    assert (plugin.defaults(turing).dtype, plugin.defaults(turing).plugins["ops"]) == ("float16", ())


def test_an_old_driver_and_a_torch_without_cuda_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(DeviceAbsent, match=r"too old: it speaks CUDA 12\.4, and this torch needs 13\.0"):
        refuse(Found((GPU,), (12, 4)), 0)
    with pytest.raises(DeviceAbsent, match="no device 1: the driver shows 1"):
        refuse(Found((GPU,), (13, 0)), 1)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceAbsent, match="built without CUDA"):
        refuse(Found((GPU,), (13, 0)), 0)


def test_without_a_gpu_there_is_no_device() -> None:
    if HERE:
        pytest.skip("there is a GPU here")
    options = plugin.Options()
    assert list(plugin.probe(options)) == []
    facts = plugin.assume("sm90")
    assert facts is not None
    with pytest.raises(DeviceAbsent):
        plugin.build(PlatformBuild(facts, options))


@pytest.mark.skipif(not HERE, reason="there is no NVIDIA GPU here")
def test_it_keeps_the_contract() -> None:
    assert shortcomings("platform:cuda", level=2) == []


def test_the_descriptor_imports_no_torch() -> None:
    code = (
        "import sys, srtkit_plugin_platform_cuda as p; p.probe(p.Options()); p.srtkit_platform(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
