"""A group of ranks that are threads of this process: enough to sum what each computes. Knows no model."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from srtkit.spec.platform import Communicator

SECONDS = 20.0


class ThreadGroup:
    """What the ranks share."""

    def __init__(self, world: int) -> None:
        self.meet = threading.Barrier(world)
        self.shared: list[Tensor] = [torch.empty(0)] * world


class ThreadRank(Communicator):
    """One rank's end. A rank that fails aborts, so that no other waits for it."""

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self._group, self._rank = group, rank

    def all_reduce(self, tensor: Tensor) -> None:
        tensor.copy_(torch.stack(self._exchanged(tensor)).sum(0))

    def all_gather(self, out: Tensor, tensor: Tensor) -> None:
        out.copy_(torch.cat(self._exchanged(tensor)))

    def broadcast(self, tensor: Tensor, source: int) -> None:
        tensor.copy_(self._exchanged(tensor)[source])

    def send(self, tensor: Tensor, target: int) -> None:
        raise AssertionError("no model of one stage sends")

    def recv(self, tensor: Tensor, source: int) -> None:
        raise AssertionError("no model of one stage receives")

    def barrier(self, timeout: float) -> None:
        self._group.meet.wait(timeout)

    def abort(self) -> None:
        self._group.meet.abort()

    def _exchanged(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, by rank."""
        self._group.shared[self._rank] = tensor.clone()
        self.barrier(SECONDS)
        found = list(self._group.shared)
        self.barrier(SECONDS)
        return found
