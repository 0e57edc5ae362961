"""The platform's objects over fake devices (device.py): streams, events, graphs, memory, groups of one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from srtkit.spec.capabilities import YES, Answer
from srtkit.spec.errors import EngineError, Unsupported
from srtkit.spec.platform import (
    ArenaTag,
    Communicator,
    Event,
    GraphHandle,
    GraphPrimitives,
    MemoryFigures,
    Platform,
    Stream,
)
from srtkit_plugin_platform_fakedev import MIB, Options, backend
from srtkit_plugin_platform_fakedev.device import Device, Recording
from srtkit_plugin_platform_fakedev.faults import PART
from srtkit_plugin_platform_fakedev.host import host_buffer
from srtkit_plugin_platform_fakedev.streams import Mark, Queue
from srtkit_plugin_platform_fakedev.tensor import DeviceTensor


class FakeStream(Stream):
    """A queue of the device, current between enter and exit."""

    def __init__(self, device: Device, queue: Queue) -> None:
        self._device, self._queue = device, queue
        self._before: list[Queue | None] = []

    def __enter__(self) -> Stream:
        """Current in this thread."""
        self._before.append(self._device.make_current(self._queue))
        return self

    def __exit__(self, *exc: object) -> None:
        """The one before."""
        self._device.make_current(self._before.pop())

    def synchronize(self) -> None:
        """Let the device do all of it."""
        self._device.wait_for_stream(self._queue)


class FakeEvent(Event):
    """The mark of the last `record`. One that was never recorded is passed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._mark: Mark | None = None

    def record(self) -> None:
        """Mark the current stream."""
        self._mark = self._device.mark()

    def wait(self) -> None:
        """The current stream waits."""
        if self._mark is not None:
            self._device.order(self._mark)

    def query(self) -> bool:
        """Asking lets the device do one more task."""
        return self._mark is None or self._device.passed(self._mark)

    def synchronize(self, timeout: float) -> None:
        """The host waits. Nothing here takes long, so `timeout` is not reached."""
        if self._mark is not None:
            self._device.wait_for_mark(self._mark)


class FakeGraph(GraphHandle):
    """Recorded tasks, with the memory that was allocated while recording."""

    def __init__(self, device: Device, recording: Recording) -> None:
        self._device = device
        self._recording: Recording | None = recording

    def replay(self) -> None:
        """Launch the tasks. Raises `EngineError` after `close`."""
        if self._recording is None:
            raise EngineError(PART, "a closed graph was replayed")
        self._device.replay(self._recording.tasks)

    def close(self) -> None:
        """Forget the tasks and free their memory. Idempotent."""
        self._recording = None


class FakeGraphs(GraphPrimitives):
    """Capture by writing down what is launched."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def new_pool(self) -> object:
        """Graphs share nothing here, so a pool is only a name."""
        return object()

    def begin(self, pool: object) -> None:
        """Launches are written down from here on, and `Trapped` is raised for what a captured region may not do."""
        self._device.begin_recording()

    def end(self) -> GraphHandle:
        """What was written down."""
        recording = self._device.end_recording()
        assert recording is not None, "end without begin"
        return FakeGraph(self._device, recording)

    def abandon(self) -> None:
        """Forget it."""
        self._device.end_recording()


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


class FakePlatform(Platform):
    """The devices of one process. Streams, events, arenas and graphs are those of device `index`."""

    def __init__(self, options: Options, index: int = 0) -> None:
        backend.register()
        self.devices = [Device(index, options.memory_mib * MIB) for index in range(options.devices)]
        for device in self.devices:
            backend.open_device(device)
        self._own = self._device(index)

    def device(self, index: int) -> torch.device:
        """fakedev:`index`."""
        return self._device(index).torch_device

    def current_stream(self) -> Stream:
        """This thread's."""
        return FakeStream(self._own, self._own.current)

    def new_stream(self) -> Stream:
        """Ordered with others by events only."""
        return FakeStream(self._own, self._own.new_stream())

    def new_event(self) -> Event:
        """Not yet recorded."""
        return FakeEvent(self._own)

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Pinned memory, which notices when it is used too early (host.py)."""
        return host_buffer(self._own, shape, dtype)

    def allocate(self, tag: ArenaTag, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros on its own device. Raises `OutOfMemory`, and `Trapped` in a captured region."""
        device = self._own
        with device.lock:
            device.refuse_in_capture(f"allocating {prod(shape) * dtype.itemsize:,} B of {tag}")
            device.counters.allocations += 1
            memory = device.arenas.allocate(tag, shape, dtype)
        return DeviceTensor(device, memory, memory.twin)

    def release(self, tag: ArenaTag) -> Answer:
        """The bytes count as free, contents are lost, and any use is an error until `restore`."""
        self._own.wait_for_all(f"releasing {tag}")
        self._own.arenas.release(tag)
        return YES

    def restore(self, tag: ArenaTag) -> None:
        """The same addresses. Raises `OutOfMemory` when the bytes have gone elsewhere."""
        self._own.arenas.restore(tag)

    def memory(self, index: int) -> MemoryFigures:
        """The accounts of one device: exact, to the byte."""
        budget = self._device(index).budget
        return MemoryFigures(total=budget.limit, free=budget.limit - budget.total, peak=budget.peak)

    def graphs(self) -> GraphPrimitives | None:
        """Recording and replaying."""
        return FakeGraphs(self._own)

    def communicator(self, ranks: Sequence[int], rank: int) -> Communicator:
        """A group of one; larger groups are refused."""
        if len(ranks) > 1:
            raise Unsupported(PART, f"has no collectives for a group of {len(ranks)} ranks", "set parallel.tensor = 1")
        return GroupOfOne()

    def close(self) -> None:
        """The devices are no longer torch's. Idempotent; tensors that are left stay usable."""
        for device in self.devices:
            backend.close_device(device)

    def _device(self, index: int) -> Device:
        if not 0 <= index < len(self.devices):
            raise Unsupported(PART, f"has no device {index}", f"there are {len(self.devices)}")
        return self.devices[index]
