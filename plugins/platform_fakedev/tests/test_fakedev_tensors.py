"""Tensors of the fake device: what torch does with them equals what it does on the host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.errors import EngineError, Unsupported
from srtkit_plugin_platform_fakedev import tensor
from srtkit_plugin_platform_fakedev.platform import FakePlatform

Work = Callable[[Tensor, Tensor], Tensor]

WORKS: dict[str, Work] = {
    "linear": lambda x, w: F.linear(x, w),
    "reshape a transposed one": lambda x, w: x.t().reshape(-1),
    "write through a view": lambda x, w: x[1:3].zero_() * 2 + x.sum(),
    "index": lambda x, w: x[torch.tensor([2, 0], device=x.device)],
    "write by index": lambda x, w: x.index_copy(0, torch.tensor([1], device=x.device), w[:1]),
    "by a mask": lambda x, w: x[x > 0],
    "out": lambda x, w: torch.mm(x, w, out=torch.empty(4, 4, device=x.device)),
    "sort": lambda x, w: x.sort(dim=-1, descending=True).values,
    "split": lambda x, w: x.chunk(2, -1)[1].contiguous(),
    "einsum": lambda x, w: torch.einsum("ab,cb->ac", x, w),
    "softmax": lambda x, w: torch.softmax(x / 0.7, -1).cumsum(-1, dtype=torch.float64),
    "cast": lambda x, w: x.to(torch.bfloat16).float(),
    "arange": lambda x, w: x + torch.arange(4, device=x.device),
    "nonzero": lambda x, w: (x > 0).nonzero(),
    "where": lambda x, w: torch.where(x > 0, x, -torch.inf),
}


@pytest.mark.parametrize("inference", [False, True], ids=["normal", "inference"])
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_results_are_those_of_the_host(platform: FakePlatform, work: Work, inference: bool) -> None:
    torch.manual_seed(1)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with torch.inference_mode(inference):
        there = work(x.to(platform.device(0)), w.to(platform.device(0)))
        assert there.device == torch.device("fakedev:0")
        assert torch.equal(there.cpu(), work(x.clone(), w))


def test_nothing_runs_before_somebody_waits(platform: FakePlatform) -> None:
    x = platform.allocate("workspace", (2,), torch.float32)
    x.add_(1)
    event = platform.new_event()
    event.record()
    x.add_(1)
    assert x.twin.tolist() == [0, 0]  # type: ignore[attr-defined]
    event.synchronize(1.0)
    assert x.twin.tolist() == [1, 1]  # type: ignore[attr-defined]
    platform.current_stream().synchronize()
    assert x.twin.tolist() == [2, 2]  # type: ignore[attr-defined]


def test_new_memory_holds_no_zeros_by_luck(platform: FakePlatform) -> None:
    assert torch.empty(3, device=platform.device(0)).isnan().all()


def test_the_host_cannot_read_device_memory(platform: FakePlatform) -> None:
    with pytest.raises(RuntimeError, match="numpy"):
        platform.allocate("kv", (2,), torch.float32).numpy()


def test_devices_do_not_mix(platform: FakePlatform) -> None:
    one, other = (torch.ones(2, device=platform.device(index)) for index in (0, 1))
    with pytest.raises(RuntimeError, match="fakedev:0 and on fakedev:1"):
        one + other
    with pytest.raises(RuntimeError, match="fakedev:0 and on cpu"):
        one + torch.ones(2)
    assert (one + torch.tensor(2.0)).tolist() == [3, 3]
    assert torch.ones(2, device=platform.device(1)).device.index == 1


def test_shapes_are_checked_at_launch_and_contents_when_it_runs(platform: FakePlatform) -> None:
    x = torch.ones(2, device=platform.device(0))
    with pytest.raises(RuntimeError, match="broadcast"):
        x + torch.ones(3, device=platform.device(0))
    bad = x.index_select(0, torch.tensor([9], device=platform.device(0)))
    with pytest.raises(EngineError, match=r"aten.index_select.default failed on the device"):
        bad.cpu()
    assert x.tolist() == [1, 1]


def test_calls_that_look_alike_have_results_of_their_own_types(platform: FakePlatform) -> None:
    here = torch.ones(2, dtype=torch.int32)
    there = here.to(platform.device(0))
    for other in (1, True, 1.0, 1, torch.tensor(1), torch.tensor(1.0, dtype=torch.float64)):
        assert (there + other).dtype == (here + other).dtype
    assert (there / 2).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert (there / 2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_calls_that_are_remembered_do_not_grow_without_end(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor, "LAYOUTS", 4)
    known = platform.devices[0].layouts
    x = torch.ones(32, device=platform.device(0))
    for size in (*range(1, 32), *range(1, 32)):
        assert (x[:size] + x[:size]).shape == (size,)
        assert 0 < len(known) <= 4


def test_what_a_tensor_is_cannot_be_changed(platform: FakePlatform) -> None:
    x = torch.ones(2, device=platform.device(0))
    with pytest.raises(Unsupported, match="resize_"):
        x.resize_(3)
    with pytest.raises(Unsupported, match="resize"):
        torch.add(x, 1, out=torch.empty(0, device=platform.device(0)))


def test_an_operator_of_another_library_runs_by_its_own_kernel(platform: FakePlatform) -> None:
    with torch.library._scoped_library("fakedev_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.define("nothing(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        x = torch.ones(2, device=platform.device(0))
        assert torch.ops.fakedev_test.twice(x).tolist() == [2, 2]
        with pytest.raises(Unsupported, match="has no kernel"):
            torch.ops.fakedev_test.nothing(x)


def test_a_copy_between_devices_waits_for_both(platform: FakePlatform) -> None:
    there = torch.zeros(2, device=platform.device(1))
    here = torch.ones(2, device=platform.device(0)) + 1
    there.copy_(here)
    here.zero_()
    assert there.tolist() == [2, 2]
    assert there.to(platform.device(0)).device.index == 0
