"""The device is described without torch, gives zeroed memory, and refuses what it has not."""

from __future__ import annotations

import pytest
import torch

from srtkit.spec.capabilities import No, NoOptions
from srtkit.spec.errors import OutOfMemory, Unsupported
from srtkit.spec.platform import Platform, PlatformBuild
from srtkit_plugin_platform_my_plugin import srtkit_platform

DESCRIPTOR = srtkit_platform()


@pytest.fixture
def platform() -> Platform:
    (facts,) = DESCRIPTOR.probe(NoOptions())
    return DESCRIPTOR.build(PlatformBuild(facts, NoOptions()))


def test_facts_and_defaults_agree() -> None:
    (facts,) = DESCRIPTOR.probe(NoOptions())
    assert facts.platform == "my-plugin"
    assert facts.memory_bytes > 1 << 28
    assert DESCRIPTOR.defaults(facts).dtype in facts.dtypes


def test_a_known_architecture_can_be_assumed() -> None:
    assumed = DESCRIPTOR.assume("aarch64")
    assert assumed is not None
    assert (assumed.platform, assumed.architecture, assumed.memory_bytes) == ("my-plugin", "aarch64", 16 << 30)
    assert DESCRIPTOR.assume("z80") is None


def test_memory_is_zeroed_and_on_the_device(platform: Platform) -> None:
    for tensor in (platform.allocate("kv", (3, 4), torch.bfloat16), platform.host_buffer((3, 4), torch.bfloat16)):
        assert (tensor.shape, tensor.dtype, tensor.device) == ((3, 4), torch.bfloat16, platform.device(0))
        assert not tensor.any()
    figures = platform.memory(0)
    assert 0 < figures.free <= figures.total
    assert 0 < figures.peak <= figures.total


def test_too_much_memory_is_refused_with_both_figures(platform: Platform) -> None:
    with pytest.raises(OutOfMemory, match=r"kv needs 4,503,599,627,370,496 bytes, [0-9,]+ are free"):
        platform.allocate("kv", (1 << 52,), torch.int8)


def test_work_is_done_when_a_call_returns(platform: Platform) -> None:
    event = platform.new_event()
    with platform.new_stream() as stream:
        event.record()
    stream.synchronize()
    event.synchronize(timeout=1)
    assert event.query()


def test_a_group_of_one_and_no_other(platform: Platform) -> None:
    group, values, out = platform.communicator([0], 0), torch.arange(3.0), torch.zeros(3)
    group.all_reduce(values)
    group.all_gather(out, values)
    group.broadcast(values, 0)
    group.barrier(timeout=1)
    assert values.tolist() == out.tolist() == [0, 1, 2]
    with pytest.raises(Unsupported):
        group.send(values, 1)
    with pytest.raises(Unsupported, match="2 ranks"):
        platform.communicator([0, 1], 0)


def test_what_it_has_not_it_says(platform: Platform) -> None:
    assert platform.graphs() is None
    assert isinstance(platform.release("kv"), No)
    with pytest.raises(Unsupported):
        platform.restore("kv")
