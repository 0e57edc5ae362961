"""Platforms whose devices, memory or groups are wrong."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from srtkit.spec.capabilities import Answer
from srtkit.spec.errors import OutOfMemory
from srtkit.spec.platform import ArenaTag, Communicator, MemoryFigures, Platform
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.platform.wrap import WrappedPlatform, around


class CountsFromOne(WrappedPlatform):
    """Takes an index for a count."""

    def device(self, index: int) -> torch.device:
        return self.inner.device(index + 1)


class DirtyHost(WrappedPlatform):
    """Host memory as it comes."""

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        buffer = self.inner.host_buffer(shape, dtype)
        buffer.numpy().fill(1)
        return buffer


class DirtyBlocks(WrappedPlatform):
    """Device memory as it comes."""

    def allocate(self, tag: ArenaTag, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        block = self.inner.allocate(tag, shape, dtype)
        block.view(torch.uint8).fill_(1)
        return block


class OverlappingBlocks(WrappedPlatform):
    """Blocks of the sizes that are often asked for come from one place."""

    def __init__(self, inner: Platform) -> None:
        super().__init__(inner)
        self.place: dict[int, Tensor] = {}

    def allocate(self, tag: ArenaTag, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        n = torch.Size(shape).numel()
        if n != 1000:
            return self.inner.allocate(tag, shape, dtype)
        if n not in self.place:
            self.place[n] = self.inner.allocate(tag, (8 * n,), torch.uint8)
        self.place[n].zero_()
        return self.place[n][: n * dtype.itemsize].view(dtype).view(tuple(shape))


class PeakForgets(WrappedPlatform):
    """The peak is what is in use now."""

    def memory(self, index: int) -> MemoryFigures:
        figures = self.inner.memory(index)
        return MemoryFigures(figures.total, figures.free, figures.total - figures.free)


class OwnError(WrappedPlatform):
    """Lets the library's error through."""

    def allocate(self, tag: ArenaTag, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        try:
            return self.inner.allocate(tag, shape, dtype)
        except OutOfMemory as error:
            raise RuntimeError("out of memory") from error


class ReleasesAll(WrappedPlatform):
    """Releasing the KV pages takes the weights along."""

    def release(self, tag: ArenaTag) -> Answer:
        self.inner.release("weights")
        answer = self.inner.release(tag)
        self.inner.restore("weights")
        return answer


class RestoresElsewhere(WrappedPlatform):
    """A restored arena is new memory."""

    def __init__(self, inner: Platform) -> None:
        super().__init__(inner)
        self.blocks: list[weakref.ref[Tensor]] = []

    def allocate(self, tag: ArenaTag, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        block = self.inner.allocate(tag, shape, dtype)
        if tag == "kv":
            self.blocks.append(weakref.ref(block))
        return block

    def restore(self, tag: ArenaTag) -> None:
        self.inner.restore(tag)
        for block in filter(None, (one() for one in self.blocks)):
            block.set_(torch.empty_like(block).untyped_storage(), 0, block.shape, block.stride())


class IdleGroup(Communicator):
    """Writes nothing."""

    def __init__(self, inner: Communicator) -> None:
        self.inner = inner

    def all_reduce(self, tensor: Tensor) -> None:
        self.inner.all_reduce(tensor)

    def all_gather(self, out: Tensor, tensor: Tensor) -> None:
        """A group of one has nothing to gather."""

    def broadcast(self, tensor: Tensor, source: int) -> None:
        self.inner.broadcast(tensor, source)

    def send(self, tensor: Tensor, target: int) -> None:
        self.inner.send(tensor, target)

    def recv(self, tensor: Tensor, source: int) -> None:
        self.inner.recv(tensor, source)

    def barrier(self, timeout: float) -> None:
        self.inner.barrier(timeout)

    def abort(self) -> None:
        self.inner.abort()


class LazyGroups(WrappedPlatform):
    def communicator(self, ranks: Sequence[int], rank: int) -> Communicator:
        return IdleGroup(self.inner.communicator(ranks, rank))


counts_from_one = mutant(
    "platform.counts_from_one",
    of="fakedev",
    sentence="device(0) is the second device, while arenas lie on the first.",
    killed_by=("platform.device",),
)(around(CountsFromOne))

dirty_host = mutant(
    "platform.dirty_host",
    of="cpu",
    sentence="Host buffers are not zeroed.",
    killed_by=("platform.host_buffer",),
)(around(DirtyHost))

dirty_blocks = mutant(
    "platform.dirty_blocks",
    of="cpu",
    sentence="Blocks of an arena are not zeroed.",
    killed_by=("platform.allocate",),
)(around(DirtyBlocks))

overlapping_blocks = mutant(
    "platform.overlapping_blocks",
    of="cpu",
    sentence="Two blocks of a certain size are the same memory.",
    killed_by=("platform.blocks_apart",),
)(around(OverlappingBlocks))

peak_forgets = mutant(
    "platform.peak_forgets",
    of="fakedev",
    sentence="The peak falls when memory is given back.",
    killed_by=("platform.figures",),
)(around(PeakForgets))

own_error = mutant(
    "platform.own_error",
    of="cpu",
    sentence="Raises its library's error when memory is short.",
    killed_by=("platform.out_of_memory",),
)(around(OwnError))

releases_all = mutant(
    "platform.releases_all",
    of="cpu",
    sentence="Releasing one arena loses the contents of another.",
    killed_by=("platform.release",),
)(around(ReleasesAll))

restores_elsewhere = mutant(
    "platform.restores_elsewhere",
    of="cpu",
    sentence="A restored arena lies at other addresses.",
    killed_by=("platform.release",),
    note="Two promises of one call, release and restore, which one check makes together.",
)(around(RestoresElsewhere))

lazy_groups = mutant(
    "platform.lazy_groups",
    of="cpu",
    sentence="all_gather of one rank leaves its output unwritten.",
    killed_by=("platform.group_of_one",),
)(around(LazyGroups))
