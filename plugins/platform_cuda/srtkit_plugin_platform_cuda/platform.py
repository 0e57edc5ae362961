"""One NVIDIA GPU through torch: memory, streams, events, and a group of one. Graphs are in graphs.py."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from srtkit.spec.capabilities import Answer, No
from srtkit.spec.errors import DeviceAbsent, EngineError, OutOfMemory, Unsupported
from srtkit.spec.platform import (
    ArenaTag,
    Communicator,
    Event,
    GraphPrimitives,
    MemoryFigures,
    Platform,
    Stream,
)
from srtkit_plugin_platform_cuda import PART, Options
from srtkit_plugin_platform_cuda.driver import Found, found
from srtkit_plugin_platform_cuda.graphs import CudaGraphs

SPINNING, NAP = 50e-6, 20e-6
"""Seconds: so long a wait only lets other threads run; a longer one leaves them the core, too."""


class CudaEvent(Event):
    """A mark in a stream of torch's. One that was never recorded is passed."""

    def __init__(self) -> None:
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
                    raise EngineError(PART, f"the device is still at work after {timeout:g} s", "look for a deadlock")
                time.sleep(0 if waited < SPINNING else NAP)
        except RuntimeError as error:
            raise EngineError(
                PART, f"the device failed: {error}", "restart; CUDA_LAUNCH_BLOCKING=1 names the kernel"
            ) from error


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


class CudaPlatform(Platform):
    """Streams, events, arenas and graphs are those of device `index`, which becomes current in this thread."""

    def __init__(self, options: Options, index: int) -> None:
        here = found()
        _refuse(here, index)
        self._gpus = here.gpus
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        # Off is torch's own default too; said here, since float32 on the card must be float32.
        torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
        # Partial sums of a product that is split stay in float32, as those of all others do.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    def device(self, index: int) -> torch.device:
        """cuda:`index`. Raises `Unsupported` for one that is not here."""
        if not 0 <= index < len(self._gpus):
            raise Unsupported(PART, f"has no device {index}", f"there are {len(self._gpus)}")
        return torch.device("cuda", index)

    def current_stream(self) -> Stream:
        """This thread's."""
        return CudaStream(torch.cuda.current_stream(self._device))

    def new_stream(self) -> Stream:
        """Ordered with others by events only."""
        return CudaStream(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]

    def new_event(self) -> Event:
        """Not yet recorded."""
        return CudaEvent()

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
                PART,
                f"{n_bytes:,} B of {tag} do not fit: {figures.free:,} B of {figures.total:,} B are free",
                "lower memory.fraction or memory.kv_gib, or end what else uses the GPU (nvidia-smi)",
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
        total = self._gpus[index].memory_bytes
        return MemoryFigures(total=total, free=min(free, total), peak=torch.cuda.max_memory_allocated(device))

    def graphs(self) -> GraphPrimitives | None:
        """Capture and replay."""
        return CudaGraphs(self._device)

    def communicator(self, ranks: Sequence[int], rank: int) -> Communicator:
        """A group of one; larger groups are refused."""
        if len(ranks) > 1:
            raise Unsupported(PART, f"has no collectives for a group of {len(ranks)} ranks", "set parallel.tensor = 1")
        return GroupOfOne()

    def close(self) -> None:
        """Give the memory that no tensor uses back to the driver; the rest ends with its tensors."""
        torch.cuda.empty_cache()


def _refuse(here: Found, index: int) -> None:
    """Raise `DeviceAbsent` unless torch can use device `index`."""
    if here.problem:
        raise DeviceAbsent(PART, here.problem, "see whether nvidia-smi works; install or update the driver")
    if index >= len(here.gpus):
        raise DeviceAbsent(PART, f"there is no device {index}: the driver shows {len(here.gpus)}")
    if torch.version.cuda is None:
        raise DeviceAbsent(
            PART, f"this torch, {torch.__version__}, was built without CUDA", "install a CUDA build of torch"
        )
    major = int(torch.version.cuda.partition(".")[0])
    if here.version is not None and here.version[0] < major:
        speaks = "{}.{}".format(*here.version)
        raise DeviceAbsent(
            PART,
            f"the driver is too old: it speaks CUDA {speaks}, and this torch needs {torch.version.cuda}",
            f"update the driver, or install a torch built for CUDA {here.version[0]}",
        )
    if not torch.cuda.is_available():
        raise DeviceAbsent(PART, "torch cannot use the GPU that the driver shows", "torch.cuda.init() says why")
