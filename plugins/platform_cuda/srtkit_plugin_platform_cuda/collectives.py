"""Groups of ranks over torch.distributed: NCCL here, RCCL under the same name on ROCm, gloo in tests.

A process joins the world when it first asks for a group of several; a group of one needs nobody. Processes find each
other as torchrun's do: torch reads MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from srtkit.spec.errors import EngineError, Unsupported
from srtkit.spec.platform import Communicator

PATIENCE = timedelta(seconds=120)
"""So long the first rank waits for the last, to join and in a collective."""
NAP = 1e-3


class GroupOfOne(Communicator):
    """Collectives with oneself."""

    def __init__(self, part: str) -> None:
        self._part = part

    def all_reduce(self, tensor: Tensor) -> None:
        """The sum of one."""

    def all_gather(self, out: Tensor, tensor: Tensor) -> None:
        """A copy."""
        out.copy_(tensor)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """It is here already."""

    def send(self, tensor: Tensor, target: int) -> None:
        """There is nobody else."""
        raise Unsupported(self._part, "a group of one has nobody to send to")

    def recv(self, tensor: Tensor, source: int) -> None:
        """There is nobody else."""
        raise Unsupported(self._part, "a group of one has nobody to receive from")

    def barrier(self, timeout: float) -> None:
        """All are here."""

    def abort(self) -> None:
        """Nothing is pending."""


class Group(Communicator):
    """Several ranks. On a GPU each collective is launched on the current stream and may be recorded; nothing waits
    but `barrier`.
    """

    def __init__(self, part: str, group: dist.ProcessGroup) -> None:
        self._part = part
        self._group = group

    def all_reduce(self, tensor: Tensor) -> None:
        """The sum, in place."""
        dist.all_reduce(tensor, group=self._group)

    def all_gather(self, out: Tensor, tensor: Tensor) -> None:
        """`out` [world · n, …] from `tensor` [n, …], contiguous both."""
        # torch 2.13 warns of the one public name that 2.11 has for it; both are around this call.
        self._group._allgather_base(out, tensor).wait()

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """In place."""
        dist.broadcast(tensor, group=self._group, group_src=source)

    def send(self, tensor: Tensor, target: int) -> None:
        """Matched by the target's `recv`."""
        dist.send(tensor, group=self._group, group_dst=target)

    def recv(self, tensor: Tensor, source: int) -> None:
        """In place."""
        dist.recv(tensor, group=self._group, group_src=source)

    def barrier(self, timeout: float) -> None:
        """Ask until all are here: a wait of torch's has the group's time limit. `EngineError` after `timeout` s."""
        # NCCL's is a collective on a device, and torch warns unless it is told which; gloo takes none.
        devices = [torch.cuda.current_device()] if dist.get_backend(self._group) == "nccl" else None
        work = dist.barrier(group=self._group, async_op=True, device_ids=devices)
        assert work is not None
        until = time.monotonic() + timeout
        while not work.is_completed():
            if time.monotonic() > until:
                cause = f"not all {self._group.size()} ranks came to a barrier within {timeout:g} s"
                raise EngineError(self._part, cause, "see what the other ranks say; restart all")
            time.sleep(NAP)

    def abort(self) -> None:
        """Pending collectives end with an error, and the group cannot be used any more. Gloo has no such thing."""
        self._group.abort()


class Collectives:
    """This process's groups in a run of `world` ranks."""

    def __init__(self, part: str, backend: str, world: int) -> None:
        self._part = part
        self._backend = backend
        self._world = world
        self._joined = False

    def group(self, ranks: Sequence[int], rank: int) -> Communicator:
        """The group of `ranks`, ascending, of which this process is `rank`; returns when all have come.

        Raises `Unsupported` for a group that is none of this run, `EngineError` when the ranks do not meet.
        """
        if rank not in ranks or list(ranks) != sorted(set(ranks) & set(range(self._world))):
            cause = f"rank {rank} in a group of {list(ranks)} is impossible in a run of {self._world}"
            raise Unsupported(self._part, cause, "name ranks of the run once each, ascending, this one among them")
        if len(ranks) == 1:
            return GroupOfOne(self._part)
        try:
            self._join(rank)
            return Group(self._part, dist.new_group(list(ranks), timeout=PATIENCE, use_local_synchronization=True))
        except (RuntimeError, ValueError) as error:  # nobody answers, or a variable is not set
            remedy = "start all ranks, with MASTER_ADDR and MASTER_PORT of rank 0, as torchrun sets them"
            raise EngineError(self._part, f"the ranks do not meet: {error}", remedy) from error

    def close(self) -> None:
        """Leave the world, if it was joined here."""
        if self._joined:
            dist.destroy_process_group()
            self._joined = False

    def _join(self, rank: int) -> None:
        if not dist.is_initialized():
            dist.init_process_group(self._backend, rank=rank, world_size=self._world, timeout=PATIENCE)
            self._joined = True
