"""Groups of ranks by gloo, and by NCCL where there are two GPUs: this process is rank 0, a second one rank 1."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from srtkit.spec.errors import EngineError, Unsupported
from srtkit_plugin_platform_cuda.collectives import Collectives

OTHER = """
import sys
import torch
from srtkit_plugin_platform_cuda.collectives import Collectives

backend, device = sys.argv[1:]
if device == "cuda":
    torch.cuda.set_device(1)
torch.set_default_device(device)
collectives = Collectives("platform:test", backend, 2)
group = collectives.group((0, 1), 1)
x = torch.tensor([1.0, 10.0])
group.all_reduce(x)
group.all_gather(torch.empty(4), x[:1] + torch.arange(2.0))
group.broadcast(torch.tensor([7.0]), 1)
group.recv(x, 0)
group.send(x + 1, 0)
group.barrier(20)
print("here", flush=True)
sys.stdin.readline()  # and never comes to the second barrier
"""


TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs here")


@pytest.fixture(params=["gloo cpu", pytest.param("nccl cuda", marks=TWO_GPUS)])
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    command = [sys.executable, "-c", OTHER, *request.param.split()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        yield process
        process.kill()


def test_two_ranks(other: subprocess.Popen[str]) -> None:
    backend, device = map(str, other.args[-2:])  # type: ignore[index]
    collectives = Collectives("platform:test", backend, 2)
    group = collectives.group((0, 1), 0)
    x = torch.tensor([2.0, 20.0], device=device)
    group.all_reduce(x)
    assert x.tolist() == [3, 30]
    out = torch.empty(4, device=device)
    group.all_gather(out, torch.tensor([-1.0, -2.0], device=device))
    assert out.tolist() == [-1, -2, 3, 4]
    told = torch.zeros(1, device=device)
    group.broadcast(told, 1)
    assert told.item() == 7
    group.send(torch.tensor([5.0, 6.0], device=device), 1)
    group.recv(x, 1)
    assert x.tolist() == [6, 7]
    group.barrier(20)
    assert other.stdout is not None and other.stdout.readline() == "here\n"
    with pytest.raises(EngineError, match=r"not all 2 ranks came to a barrier within 0\.1 s"):
        group.barrier(0.1)
    group.abort()  # breaks what NCCL has pending; gloo has nothing that could
    other.kill()
    collectives.close()
    assert not dist.is_initialized()


def test_groups_that_this_run_cannot_have() -> None:
    for world, ranks, rank in ((1, (0, 1), 0), (2, (1,), 0), (2, (0, 2), 0), (2, (1, 0), 0), (3, (0, 1), 2)):
        with pytest.raises(Unsupported, match=f"impossible in a run of {world}"):
            Collectives("platform:test", "gloo", world).group(ranks, rank)


def test_ranks_that_nobody_told_where_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EngineError, match="do not meet"):
        Collectives("platform:test", "gloo", 2).group((0, 1), 0)
    assert not dist.is_initialized()


def test_a_group_of_one_needs_nobody() -> None:
    group = Collectives("platform:test", "gloo", 1).group((0,), 0)
    out = torch.zeros(2)
    group.all_gather(out, torch.ones(2))
    assert out.tolist() == [1, 1] and not dist.is_initialized()
    with pytest.raises(Unsupported):
        group.send(out, 0)
