"""The checker: a missing synchronisation is found, one that is there is not."""

from __future__ import annotations

import pytest
import torch

from srtkit_plugin_platform_fakedev.faults import RaceFound
from srtkit_plugin_platform_fakedev.platform import FakePlatform


def test_reading_on_another_stream_needs_an_event(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (4,), torch.float32)
    side = platform.new_stream()
    x.add_(1)
    with side, pytest.raises(RaceFound, match=r"reads memory that task 1 of stream 0 \(aten.add_.Tensor\) writes"):
        x + 1
    written = platform.new_event()
    written.record()
    with side:
        written.wait()
        y = x + 1
        read = platform.new_event()
        read.record()
    with pytest.raises(RaceFound, match=r"writes memory that .* of stream 1 .* reads"):
        x.zero_()
    read.wait()
    x.zero_()
    assert y.cpu().tolist() == [2] * 4


def test_an_event_orders_what_was_before_it_only(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (4,), torch.float32)
    event = platform.new_event()
    event.record()
    x.add_(1)
    with platform.new_stream():
        event.wait()
        with pytest.raises(RaceFound):
            x + 1


def test_order_goes_through_a_third_stream(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (4,), torch.float32)
    first, second = platform.new_event(), platform.new_event()
    x.add_(1)
    first.record()
    with platform.new_stream():
        first.wait()
        second.record()
    with platform.new_stream():
        second.wait()
        assert (x + 1).tolist() == [2] * 4


def test_waiting_on_the_host_orders_all_streams(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (4,), torch.float32)
    x.add_(1)
    platform.current_stream().synchronize()
    with platform.new_stream():
        assert (x + 1).tolist() == [2] * 4


def test_different_bytes_and_two_readers_need_no_order(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (4, 4), torch.float32)
    platform.current_stream().synchronize()
    x[:2].add_(1)
    y = x[3] + 1
    with platform.new_stream():
        x[2].add_(1)
        z = x[3] + 1
        assert z.tolist() == [1] * 4
    assert y.tolist() == [1] * 4


def test_the_host_must_wait_before_it_reads(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (4,), torch.int32).add_(3)
    host = platform.host_buffer((2, 4), torch.int32)
    early = host[0].numpy()
    host[0].copy_(x, non_blocking=True)
    done = platform.new_event()
    done.record()
    assert early.tolist() == [-1] * 4
    with pytest.raises(RaceFound, match="numpy on the host, which has not waited"):
        host[0].numpy()
    with pytest.raises(RaceFound):
        host.sum()
    assert host[1].numpy().tolist() == [0] * 4
    assert not done.query() or done.query()
    done.synchronize(1.0)
    assert host[0].numpy().tolist() == [3] * 4


def test_a_blocking_copy_needs_no_wait_nor_does_one_to_pageable_memory(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (4,), torch.int32).add_(3)
    host = platform.host_buffer((4,), torch.int32)
    host.copy_(x)
    assert host.numpy().tolist() == [3] * 4
    pageable = torch.zeros(4, dtype=torch.int32)
    pageable.copy_(x, non_blocking=True)
    assert pageable.tolist() == [3] * 4


def test_a_source_may_not_change_before_it_is_read(platform: FakePlatform) -> None:
    host = platform.host_buffer((4,), torch.int32)
    array = host.numpy()
    x = platform.allocate("workspace", (4,), torch.int32)
    x.copy_(host, non_blocking=True)
    array[0] = 1
    with pytest.raises(RaceFound, match="the host overwrote a buffer before"):
        x.cpu()
    x.copy_(host, non_blocking=True)
    with pytest.raises(RaceFound, match="fill_ on the host"):
        host.fill_(7)
    platform.current_stream().synchronize()
    host.fill_(7)
    assert x.tolist() == [1, 0, 0, 0]


def test_pageable_memory_is_taken_at_once(platform: FakePlatform) -> None:
    pageable = torch.zeros(4, dtype=torch.int32)
    x = platform.allocate("workspace", (4,), torch.int32)
    x.copy_(pageable, non_blocking=True)
    pageable.fill_(1)
    assert x.tolist() == [0] * 4


def test_asking_an_event_lets_time_pass(platform: FakePlatform) -> None:
    event = platform.new_event()
    assert event.query()
    x = platform.allocate("workspace", (4,), torch.float32)
    for _ in range(3):
        x.add_(1)
    event.record()
    assert [event.query() for _ in range(5)] == [False, False, False, True, True]


def test_streams_are_those_of_a_thread_and_nest(platform: FakePlatform) -> None:
    first = platform.devices[0]
    outer, inner = platform.new_stream(), platform.new_stream()
    assert first.current.number == 0
    with outer:
        with inner:
            assert first.current.number == 2
        assert first.current.number == 1
    assert first.current.number == 0


def test_a_number_read_on_one_stream_may_be_written_on_another(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (1,), torch.float32)
    with platform.new_stream():
        x.add_(1)
    with pytest.raises(RaceFound, match="reading a number"):
        x.item()
