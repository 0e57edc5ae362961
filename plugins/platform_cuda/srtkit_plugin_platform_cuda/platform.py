"""One GPU through `torch.cuda`: memory, streams, events. Graphs are in graphs.py, groups of ranks in collectives.py.

A ROCm build of torch has AMD's GPUs under the same names, so `platform:rocm` builds on this, too. What a vendor's
driver and torch must have is seen to before (nvidia.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from srtkit.spec.capabilities import Answer, No
from srtkit.spec.errors import EngineError, OutOfMemory, Unsupported
from srtkit.spec.platform import (
    ArenaTag,
    Communicator,
    Event,
    GraphPrimitives,
    MemoryFigures,
    Platform,
    PlatformBuild,
    Stream,
)
from srtkit_plugin_platform_cuda.collectives import Collectives
from srtkit_plugin_platform_cuda.graphs import CudaGraphs

SPINNING, NAP = 50e-6, 20e-6
"""Seconds: so long a wait only lets other threads run; a longer one leaves them the core, too."""


@dataclass(frozen=True)
class Vendor:
    """What messages name: the platform's part, the program that shows the GPU's users, and the variable that makes
    launches wait, so that an error names its kernel.
    """

    part: str
    monitor: str
    blocking: str


class CudaEvent(Event):
    """A mark in a stream of torch's. One that was never recorded is passed."""

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self) -> None:
        """Mark the current stream."""
        self._event.record()

    def wait(self) -> None:
        """The current stream waits."""
        self._event.wait()

    def query(self) -> bool:
        """Whether the mark has been passed."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def synchronize(self, timeout: float) -> None:
        """Ask until it is passed: the driver's own wait has no time limit. Other threads run meanwhile.

        Raises `EngineError` after `timeout` seconds, and with the driver's words when the device has failed.
        """
        begun = time.monotonic()
        try:
            while not self._event.query():  # type: ignore[no-untyped-call]
                waited = time.monotonic() - begun
                if waited > timeout:
                    cause = f"the device is still at work after {timeout:g} s"
                    raise EngineError(self._vendor.part, cause, "look for a deadlock")
                time.sleep(0 if waited < SPINNING else NAP)
        except RuntimeError as error:
            remedy = f"restart; {self._vendor.blocking}=1 names the kernel"
            raise EngineError(self._vendor.part, f"the device failed: {error}", remedy) from error


class CudaStream(Stream):
    """A stream of torch's; current in this thread inside its `with` blocks, which may nest."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._before: list[torch.cuda.Stream] = []

    def __enter__(self) -> Stream:
        """Current from here on."""
        self._before.append(torch.cuda.current_stream(self._stream.device))
        torch.cuda.set_stream(self._stream)
        return self

    def __exit__(self, *exc: object) -> None:
        """The one before."""
        torch.cuda.set_stream(self._before.pop())

    def synchronize(self) -> None:
        """Wait on the host for all of its work."""
        self._stream.synchronize()


class CudaPlatform(Platform):
    """Streams, events, arenas and graphs are those of device `request.device_index`, which becomes current in this
    thread. `totals` are the bytes of each device, by index.
    """

    def __init__(self, vendor: Vendor, totals: Sequence[int], request: PlatformBuild, *, tf32: bool = False) -> None:
        self._vendor = vendor
        self._totals = totals
        self._device = torch.device("cuda", request.device_index)
        # A ROCm build of torch has RCCL under NCCL's name.
        self._collectives = Collectives(vendor.part, "nccl", request.world)
        torch.cuda.set_device(self._device)
        # Off is torch's own default too; said here, since float32 on the card must be float32.
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        # Partial sums of a product that is split stay in float32, as those of all others do.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    def device(self, index: int) -> torch.device:
        """cuda:`index`. Raises `Unsupported` for one that is not here."""
        if not 0 <= index < len(self._totals):
            raise Unsupported(self._vendor.part, f"has no device {index}", f"there are {len(self._totals)}")
        return torch.device("cuda", index)

    def current_stream(self) -> Stream:
        """This thread's."""
        return CudaStream(torch.cuda.current_stream(self._device))

    def new_stream(self) -> Stream:
        """Ordered with others by events only."""
        return CudaStream(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]

    def new_event(self) -> Event:
        """Not yet recorded."""
        return CudaEvent(self._vendor)

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeroed pinned memory: copies from and to it do not hold up the host."""
        return torch.zeros(tuple(shape), dtype=dtype, pin_memory=True)

    def allocate(self, tag: ArenaTag, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros from torch's allocator, in which all arenas lie. Raises `OutOfMemory` with both figures."""
        n_bytes = prod(shape) * dtype.itemsize
        try:
            memory = torch.zeros(n_bytes, dtype=torch.uint8, device=self._device)  # zeros of every dtype alike
        except torch.OutOfMemoryError:
            figures = self.memory(self._device.index or 0)
            raise OutOfMemory(
                self._vendor.part,
                f"{n_bytes:,} B of {tag} do not fit: {figures.free:,} B of {figures.total:,} B are free",
                f"lower memory.fraction or memory.kv_gib, or end what else uses the GPU ({self._vendor.monitor})",
            ) from None
        return memory.view(dtype).view(tuple(shape))

    def release(self, tag: ArenaTag) -> Answer:
        """No."""
        return No("torch's allocator cannot bring memory back to the same addresses")

    def restore(self, tag: ArenaTag) -> None:
        """Nothing was released."""

    def memory(self, index: int) -> MemoryFigures:
        """Free is what the driver has, and the blocks that torch's allocator keeps whole without using them."""
        device = self.device(index)
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_stats(device)
        parts = ("active_bytes.all.current", "inactive_split_bytes.all.current")
        free += kept.get("reserved_bytes.all.current", 0) - sum(kept.get(part, 0) for part in parts)
        total = self._totals[index]
        return MemoryFigures(total=total, free=min(free, total), peak=torch.cuda.max_memory_allocated(device))

    def graphs(self) -> GraphPrimitives | None:
        """Capture and replay."""
        return CudaGraphs(self._device, self._vendor.part)

    def communicator(self, ranks: Sequence[int], rank: int) -> Communicator:
        """Collectives over NCCL or RCCL."""
        return self._collectives.group(ranks, rank)

    def close(self) -> None:
        """Leave the groups, and give memory that no tensor uses back to the driver; the rest ends with its tensors."""
        self._collectives.close()
        torch.cuda.empty_cache()
