"""Captured regions: what is trapped in them, and what a replay does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from srtkit.spec.platform import GraphHandle
from srtkit_plugin_platform_fakedev.faults import RaceFound, Trapped
from srtkit_plugin_platform_fakedev.platform import FakePlatform


def capture(platform: FakePlatform, work: Callable[[], object]) -> GraphHandle:
    graphs = platform.graphs()
    assert graphs is not None
    return graphs.capture(graphs.new_pool(), lambda: (work(), None)[1])


TRAPPED: dict[str, tuple[Callable[[FakePlatform, Tensor], object], str]] = {
    "an arena": (lambda p, x: p.allocate("workspace", (8,), torch.float32), "allocating 32 B of workspace"),
    "host memory": (lambda p, x: p.host_buffer((8,), torch.float32), "allocating host memory"),
    "item": (lambda p, x: x[0].item(), "reading a number"),
    "to the host": (lambda p, x: x.cpu(), "a blocking copy to the host"),
    "a mask": (lambda p, x: x[x > 0], "aten.index.Tensor"),
    "pageable memory": (lambda p, x: x.copy_(torch.ones(4), non_blocking=True), "pageable host memory"),
    "a stream": (lambda p, x: p.current_stream().synchronize(), "waiting for a stream"),
    "an event": (lambda p, x: p.new_event().record(), "an event"),
    "a capture": (lambda p, x: capture(p, lambda: None), "another capture"),
}


@pytest.mark.parametrize(("work", "what"), TRAPPED.values(), ids=TRAPPED.keys())
def test_trapped(platform: FakePlatform, work: Callable[[FakePlatform, Tensor], object], what: str) -> None:
    x = platform.allocate("workspace", (4,), torch.float32)
    free = platform.memory(0).free
    with pytest.raises(Trapped, match=f"{what}.* inside a captured region"):
        capture(platform, lambda: work(platform, x.add_(1)))
    assert platform.memory(0).free == free
    assert x.tolist() == [0] * 4, "what was captured before the trap has run"
    capture(platform, lambda: x.add_(1)).replay()
    assert x.tolist() == [1] * 4


def test_another_stream_is_trapped(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (4,), torch.float32)
    side = platform.new_stream()

    def work() -> None:
        with side:
            x.add_(1)

    with pytest.raises(Trapped, match=r"aten.add_.Tensor on another stream"):
        capture(platform, work)


def test_a_replay_does_the_work_again_on_what_is_there(platform: FakePlatform) -> None:
    host = platform.host_buffer((4,), torch.float32)
    x = platform.allocate("workspace", (4,), torch.float32)
    made: list[Tensor] = []

    def work() -> None:
        x.copy_(host, non_blocking=True)
        made.append((x * 2).sum() + torch.ones(1, device=x.device))

    graph = capture(platform, work)
    (out,) = made
    for value in (1.0, 5.0):
        host.fill_(value)
        graph.replay()
        assert out.item() == 8 * value + 1


def test_a_replay_allocates_nothing_and_does_not_wait(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (4,), torch.float32)
    kept: list[Tensor] = []
    graph = capture(platform, lambda: kept.append(x + 1))
    before, free = platform.devices[0].counters, platform.memory(0).free
    allocations, waits = before.allocations, before.host_waits
    for _ in range(3):
        graph.replay()
    assert (before.allocations, before.host_waits, platform.memory(0).free) == (allocations, waits, free)


def test_a_graph_keeps_its_memory_until_it_is_closed(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (1 << 18,), torch.float32)
    free = platform.memory(0).free
    graph = capture(platform, lambda: x.add_((x + 1) * 2))
    assert platform.memory(0).free == free - (2 << 20)
    graph.replay()
    graph.close()
    graph.close()
    assert platform.memory(0).free == free
    assert x[:2].tolist() == [2, 2]


def test_random_numbers_differ_between_replays(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (4,), torch.float32)
    graph = capture(platform, lambda: x.uniform_())
    graph.replay()
    first = x.tolist()
    graph.replay()
    assert x.tolist() != first


def test_a_replay_is_checked_for_order(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (4,), torch.float32)
    graph = capture(platform, lambda: x.add_(1))
    graph.replay()
    with platform.new_stream(), pytest.raises(RaceFound):
        graph.replay()
