"""Memory of the fake device: every byte counted, the limit held, arenas given back."""

from __future__ import annotations

import pytest
import torch

from srtkit.spec.errors import EngineError, OutOfMemory
from srtkit_plugin_platform_fakedev.platform import FakePlatform

MIB = 1 << 20


def test_figures_are_exact(platform: FakePlatform) -> None:
    block = platform.allocate("kv", (MIB // 2,), torch.float16)
    made = torch.empty(256, 1024, device=platform.device(0))
    figures = platform.memory(0)
    assert (figures.total, figures.free, figures.peak) == (4 * MIB, 2 * MIB, 2 * MIB)
    view = block[10:20]
    del block, made
    assert platform.memory(0).free == 3 * MIB
    del view
    assert platform.memory(0).free == 4 * MIB
    assert platform.memory(0).peak == 2 * MIB
    assert platform.memory(1).peak == 0


def test_what_a_task_makes_is_counted_until_its_tensor_ends(platform: FakePlatform) -> None:
    x = torch.zeros(MIB // 4, device=platform.device(0))
    for _ in range(10):
        x = x + 1
    assert platform.memory(0).peak == 2 * MIB
    assert x[:3].tolist() == [10] * 3


def test_the_limit_holds_for_arenas_and_for_torch(platform: FakePlatform) -> None:
    kept = platform.allocate("kv", (3, MIB), torch.uint8)
    with pytest.raises(OutOfMemory, match=r"workspace wants 2,097,152 B, 3,145,728 B of 4,194,304 B are in use"):
        platform.allocate("workspace", (2, MIB), torch.uint8)
    with pytest.raises(OutOfMemory, match="tensors wants"):
        torch.zeros(2 * MIB, dtype=torch.uint8, device=platform.device(0))
    del kept
    block = platform.allocate("workspace", (4, MIB), torch.uint8)
    assert platform.memory(0).free == 0
    assert not block.cpu().any()


def test_an_arena_is_given_back_and_restored_at_its_addresses(platform: FakePlatform) -> None:
    weights = platform.allocate("weights", (8,), torch.float32).fill_(7)
    block = platform.allocate("kv", (2, MIB), torch.uint8)
    address = block.data_ptr()
    assert platform.release("kv")
    assert platform.memory(0).free == 4 * MIB - 32
    with pytest.raises(EngineError, match="the released arena kv"):
        block.zero_()
    other = torch.empty(3 * MIB, dtype=torch.uint8, device=platform.device(0))
    with pytest.raises(OutOfMemory):
        platform.restore("kv")
    del other
    platform.restore("kv")
    assert block.data_ptr() == address
    block.fill_(1)
    assert int(block[1, -1]) == 1
    assert weights.tolist() == [7] * 8


def test_a_block_that_ends_while_released_is_not_counted_twice(platform: FakePlatform) -> None:
    block = platform.allocate("kv", (MIB,), torch.uint8)
    platform.release("kv")
    del block
    platform.restore("kv")
    assert platform.memory(0).free == 4 * MIB


def test_a_platform_forgets_its_devices_when_it_is_closed(platform: FakePlatform) -> None:
    platform.close()
    platform.close()
    with pytest.raises(Exception, match="there is no device fakedev:0"):
        torch.empty(2, device="fakedev:0")


def test_pinned_memory_is_free_again_with_its_last_tensor(platform: FakePlatform) -> None:
    """Views keep it, and so does a copy that has not run yet."""
    kept = platform.host_buffer((4,), torch.int32)[1:]
    for value in range(50):
        host = platform.host_buffer((4,), torch.int32)
        host.numpy()[:] = value
        there = host.to(platform.device(0), non_blocking=True)
        del host
    platform.current_stream().synchronize()
    assert there.tolist() == [49] * 4
    device = platform.devices[0]
    platform.host_buffer((4,), torch.int32)
    assert len(device._pinned) <= 4
    assert device.pinned(kept.as_plain()) is not None
