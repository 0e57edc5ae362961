"""The device objects. Work on the CPU is done when a call returns, so streams and events order nothing.

A device with asynchronous launches replaces every class here, and says `async_launch` in its facts.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from math import prod
from typing import final

import torch
from torch import Tensor

from srtkit.spec.capabilities import Answer, No
from srtkit.spec.errors import OutOfMemory, Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import ArenaTag, Communicator, Event, GraphPrimitives, MemoryFigures, Platform, Stream

PART = "platform:my-plugin"


@final
class DoneEvent(Event):
    """A mark that has always been passed."""

    def record(self) -> None:
        """All work before it is done."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Passed."""
        return True

    def synchronize(self, timeout: float) -> None:
        """Nothing to wait for."""


@final
class CallOrder(Stream):
    """The order of the calls themselves."""

    def __enter__(self) -> Stream:
        """It is always current."""
        return self

    def __exit__(self, *exc: object) -> None:
        """It stays current."""

    def synchronize(self) -> None:
        """All work is done."""


@final
class GroupOfOne(Communicator):
    """Collectives of a group that has no other rank."""

    def all_reduce(self, tensor: Tensor) -> None:
        """The sum of one."""

    def all_gather(self, out: Tensor, tensor: Tensor) -> None:
        """A copy."""
        out.copy_(tensor)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """The tensor is the source's own."""

    def send(self, tensor: Tensor, target: int) -> None:
        """Raises `Unsupported`."""
        raise Unsupported(PART, f"there is no rank {target} in a group of one")

    def recv(self, tensor: Tensor, source: int) -> None:
        """Raises `Unsupported`."""
        raise Unsupported(PART, f"there is no rank {source} in a group of one")

    def barrier(self, timeout: float) -> None:
        """All ranks are here."""

    def abort(self) -> None:
        """Nothing is pending."""


@final
class MyPluginPlatform(Platform):
    """One device."""

    def __init__(self, facts: DeviceFacts) -> None:
        self._total = facts.memory_bytes

    def device(self, index: int) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def current_stream(self) -> Stream:
        """The order of calls."""
        return CallOrder()

    def new_stream(self) -> Stream:
        """The same order of calls: nothing runs beside it."""
        return CallOrder()

    def new_event(self) -> Event:
        """A mark that has been passed."""
        return DoneEvent()

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Ordinary memory."""
        return torch.zeros(tuple(shape), dtype=dtype)

    def allocate(self, tag: ArenaTag, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeroed memory. Raises `OutOfMemory` for more than is free now."""
        wanted, free = prod(shape) * dtype.itemsize, self.memory(0).free
        if wanted > free:
            cause = f"{tag} needs {wanted:,} bytes, {free:,} are free"
            raise OutOfMemory(PART, cause, "lower memory.fraction or memory.kv_gib")
        return torch.zeros(tuple(shape), dtype=dtype)

    def release(self, tag: ArenaTag) -> Answer:
        """No."""
        return No("its memory cannot come back at the same addresses")

    def restore(self, tag: ArenaTag) -> None:
        """Raises `Unsupported`: nothing was released."""
        raise Unsupported(PART, f"the arena {tag} was never released")

    def memory(self, index: int) -> MemoryFigures:
        """The machine's memory, and the largest resident size of this process."""
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return MemoryFigures(total=self._total, free=free, peak=peak)

    def graphs(self) -> GraphPrimitives | None:
        """None: nothing is recorded."""
        return None

    def communicator(self, ranks: Sequence[int], rank: int) -> Communicator:
        """A group of one. Raises `Unsupported` for more."""
        if len(ranks) != 1:
            raise Unsupported(PART, f"has no collectives among {len(ranks)} ranks", "set parallel.tensor = 1")
        return GroupOfOne()

    def close(self) -> None:
        """Nothing is held."""
