"""The door: facts, options, and an import without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError

import srtkit_plugin_platform_fakedev as plugin
from srtkit.spec.errors import Unsupported
from srtkit.spec.platform import PlatformBuild
from srtkit_plugin_platform_fakedev.platform import FakePlatform


def test_facts_follow_the_options() -> None:
    facts = plugin.probe(plugin.Options(devices=3, memory_mib=5))[0]
    assert (facts.count, facts.memory_bytes) == (3, 5 << 20)
    assert facts.async_launch
    assert facts.graphs
    assert facts.pinned
    assert plugin.assume(plugin.ARCHITECTURE) == plugin.probe(plugin.Options())[0]
    assert plugin.assume("other") is None
    with pytest.raises(ValidationError):
        plugin.Options(devices=0)


def test_it_comes_after_the_cpu_in_detection() -> None:
    assert plugin.srtkit_platform().priority < 0


def test_the_descriptor_imports_no_torch() -> None:
    code = "import sys, srtkit_plugin_platform_fakedev as p; d = p.srtkit_platform()\n"
    code += "d.defaults(d.probe(d.options())[0]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_devices_by_index(platform: FakePlatform) -> None:
    assert [platform.device(index) for index in range(2)] == [torch.device("fakedev:0"), torch.device("fakedev:1")]
    with pytest.raises(Unsupported, match="has no device 2"):
        platform.device(2)


def test_groups(platform: FakePlatform) -> None:
    group = platform.communicator((0,), 0)
    x = torch.arange(3, device=platform.device(0))
    out = torch.empty_like(x)
    group.all_reduce(x)
    group.broadcast(x, 0)
    group.all_gather(out, x)
    group.barrier(timeout=0.0)
    group.abort()
    assert out.tolist() == [0, 1, 2]
    for call in (group.send, group.recv):
        with pytest.raises(Unsupported):
            call(x, 1)
    with pytest.raises(Unsupported, match="a group of 2 ranks"):
        platform.communicator((0, 1), 0)


def test_arenas_and_streams_are_those_of_the_device_it_is_built_for() -> None:
    options = plugin.Options()
    platform = plugin.build(PlatformBuild(plugin.probe(options)[0], options, device_index=1))
    block = platform.allocate("kv", (4,), torch.float32)
    assert block.device.index == 1
    assert platform.memory(1).peak == 16
    assert platform.memory(0).peak == 0
    platform.close()
