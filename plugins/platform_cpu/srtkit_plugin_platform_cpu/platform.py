"""The CPU as a device: work is done when a call returns, so streams and events have nothing to order."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from srtkit.spec.capabilities import YES, Answer, No
from srtkit.spec.errors import Unsupported
from srtkit.spec.platform import (
    ArenaTag,
    Communicator,
    Event,
    GraphPrimitives,
    MemoryFigures,
    Platform,
    Stream,
)
from srtkit_plugin_platform_cpu import Options, threads
from srtkit_plugin_platform_cpu.arenas import Arenas
from srtkit_plugin_platform_cpu.facts import memory_available, memory_total, usable_cpus

PART = "platform:cpu"


class CpuEvent(Event):
    """Always passed."""

    def record(self) -> None:
        """Nothing is pending."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Yes."""
        return True

    def synchronize(self, timeout: float) -> None:
        """Nothing to wait for."""


class CpuStream(Stream):
    """The order of calls."""

    def __enter__(self) -> Stream:
        """There is one only."""
        return self

    def __exit__(self, *exc: object) -> None:
        """There is one only."""

    def synchronize(self) -> None:
        """Nothing is pending."""


class GroupOfOne(Communicator):
    """Collectives with oneself."""

    def all_reduce(self, tensor: Tensor) -> None:
        """The sum of one."""

    def all_gather(self, out: Tensor, tensor: Tensor) -> None:
        """A copy."""
        out.copy_(tensor)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """It is here already."""

    def send(self, tensor: Tensor, target: int) -> None:
        """There is nobody else."""
        raise Unsupported(PART, "a group of one has nobody to send to")

    def recv(self, tensor: Tensor, source: int) -> None:
        """There is nobody else."""
        raise Unsupported(PART, "a group of one has nobody to receive from")

    def barrier(self, timeout: float) -> None:
        """All are here."""

    def abort(self) -> None:
        """Nothing is pending."""


class CpuPlatform(Platform):
    """Build it in the thread that will compute (see threads.py)."""

    def __init__(self, options: Options) -> None:
        cpus = usable_cpus()
        threads.set_up(PART, options.threads or min(len(cpus), threads.ALLOWED), cpus if options.pin else ())
        self._arenas = Arenas(PART, memory_available)

    def device(self, index: int) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def current_stream(self) -> Stream:
        """The order of calls."""
        return CpuStream()

    def new_stream(self) -> Stream:
        """The same order of calls."""
        return CpuStream()

    def new_event(self) -> Event:
        """Always passed."""
        return CpuEvent()

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Ordinary memory."""
        return torch.zeros(tuple(shape), dtype=dtype)

    def allocate(self, tag: ArenaTag, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros; the system hands each page out when it is first written."""
        return self._arenas.allocate(tag, shape, dtype)

    def release(self, tag: ArenaTag) -> Answer:
        """The arena's pages go back to the system."""
        if sys.platform != "linux":
            return No("pages of a mapping can be given back on Linux only")
        self._arenas.release(tag)
        return YES

    def restore(self, tag: ArenaTag) -> None:
        """Zeros at the same addresses."""
        self._arenas.restore(tag)

    def memory(self, index: int) -> MemoryFigures:
        """What the machine has and can still give, and the peak resident size of this process."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        unit = 1 if sys.platform == "darwin" else 1024
        return MemoryFigures(total=memory_total(), free=memory_available(), peak=peak * unit)

    def graphs(self) -> GraphPrimitives | None:
        """None."""
        return None

    def communicator(self, ranks: Sequence[int], rank: int) -> Communicator:
        """A group of one; larger groups are refused."""
        if len(ranks) > 1:
            raise Unsupported(
                PART, f"has no collectives for a group of {len(ranks)} ranks", "set parallel.tensor = 1 on a CPU"
            )
        return GroupOfOne()

    def close(self) -> None:
        """Nothing to release: memory ends with its tensors."""
