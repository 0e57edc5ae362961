"""One fake device: its streams, its memory, what is being captured, and what the host has waited for.

One lock for all of it, since several threads may use a device. Several host threads count as one: what one
has waited for, all have. Knows no operators.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from srtkit_plugin_platform_fakedev.faults import Trapped
from srtkit_plugin_platform_fakedev.memory import TENSORS, Arenas, Budget, Memory
from srtkit_plugin_platform_fakedev.order import Clock, History, join
from srtkit_plugin_platform_fakedev.streams import Mark, Queue, Task


@dataclass
class Recording:
    """What a captured region has launched, and the memory that torch allocated in it."""

    queue: Queue
    tasks: list[Task] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)


@dataclass
class Counters:
    """What the device was asked for, since the start. `allocations` are torch's and the arenas'."""

    launches: int = 0
    host_waits: int = 0
    allocations: int = 0
    replays: int = 0


class _Current(threading.local):
    queue: Queue | None = None


class Device:
    """`index` is torch's, `limit` in bytes."""

    def __init__(self, index: int, limit: int) -> None:
        self.torch_device = torch.device("fakedev", index)
        self.budget = Budget(limit)
        self.arenas = Arenas(self.budget)
        self.counters = Counters()
        self.lock = threading.RLock()
        self.layouts: dict[Hashable, list[Any]] = {}  # a call as meta kernels see it → what its results look like
        self._streams = [Queue(0)]
        self._current = _Current()
        self._host: Clock = {}
        self._recording: Recording | None = None
        self._pinned: dict[int, tuple[StorageWeakRef, History]] = {}

    # -- streams --------------------------------------------------------------------------------

    @property
    def current(self) -> Queue:
        """The stream of this thread."""
        return self._current.queue or self._streams[0]

    def make_current(self, queue: Queue | None) -> Queue | None:
        """Set this thread's stream; the one before."""
        before, self._current.queue = self._current.queue, queue
        return before

    def new_stream(self) -> Queue:
        """One more."""
        with self.lock:
            self._streams.append(Queue(len(self._streams)))
            return self._streams[-1]

    def launch(self, task: Task) -> None:
        """Append to the current stream, or to what is being captured."""
        with self.lock:
            if self._recording is None:
                self.counters.launches += 1
                self.current.launch(task, self._host)
                return
            if self.current is not self._recording.queue:
                raise Trapped(f"{task.name} on another stream")
            self._recording.tasks.append(task)

    def mark(self) -> Mark:
        """A mark in the current stream."""
        with self.lock:
            self.refuse_in_capture("an event")
            return self.current.mark()

    def order(self, mark: Mark) -> None:
        """The current stream waits for a mark."""
        with self.lock:
            self.refuse_in_capture("an event")
            self.current.wait(mark)

    def wait_for_mark(self, mark: Mark) -> None:
        """The host waits for a mark."""
        with self.lock:
            self.host_waits("waiting for an event")
            mark.queue.run(mark)
            join(self._host, mark.clock)

    def wait_for_stream(self, queue: Queue | None = None, what: str = "waiting for a stream") -> None:
        """The host waits for a stream (None: the current one)."""
        with self.lock:
            self.host_waits(what)
            queue = queue or self.current
            queue.run()
            join(self._host, queue.clock)

    def wait_for_all(self, what: str) -> None:
        """The host waits for everything."""
        with self.lock:
            for queue in self._streams:
                self.wait_for_stream(queue, what)

    def passed(self, mark: Mark) -> bool:
        """Whether a mark is passed. Time passes by asking: each question lets the device do one task more."""
        with self.lock:
            self.refuse_in_capture("asking for an event")
            while not mark.passed and not mark.queue.step():
                pass
            if mark.passed:
                join(self._host, mark.clock)
            return mark.passed

    def host_waits(self, what: str) -> None:
        """Count a wait of the host. Raises `Trapped` in a captured region."""
        self.refuse_in_capture(what)
        self.counters.host_waits += 1

    # -- memory ---------------------------------------------------------------------------------

    def memory_for(self, twin: Tensor) -> Memory:
        """Memory for a tensor that looks like `twin` (a meta tensor), contents undefined. Raises `OutOfMemory`."""
        with self.lock:
            self.counters.allocations += 1
            tag = TENSORS if self._recording is None else "graphs"
            memory = Memory(self.budget, tag, twin.size(), twin.stride(), twin.dtype)
            if self._recording is not None:
                self._recording.memories.append(memory)
            return memory

    def pin(self, tensor: Tensor) -> None:
        """Host memory that the device may use while the host goes on. It is free again with its last tensor, of which
        the tasks that use it have some.
        """
        self.refuse_in_capture("allocating host memory")
        self._pinned = {at: entry for at, entry in self._pinned.items() if not entry[0].expired()}
        storage = tensor.untyped_storage()
        self._pinned[storage.data_ptr()] = (StorageWeakRef(storage), History())

    def pinned(self, tensor: Tensor) -> History | None:
        """The uses of a pinned tensor's memory; None when it is not pinned."""
        found = self._pinned.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else None
        return found[1] if found and not found[0].expired() else None

    def host_uses(self, history: History, span: tuple[int, int], writes: bool, what: str) -> None:
        """The host reads (or writes) memory. Raises `RaceFound` when the device may be at it."""
        with self.lock:
            history.check(f"{what} on the host, which has not waited,", span, writes, self._host)

    # -- capture --------------------------------------------------------------------------------

    def begin_recording(self) -> None:
        """Launches of the current stream are written down and not done. Raises `Trapped` inside another recording."""
        with self.lock:
            self.refuse_in_capture("another capture")
            self._recording = Recording(self.current)

    def end_recording(self) -> Recording | None:
        """What was written down; None if nothing was."""
        with self.lock:
            recording, self._recording = self._recording, None
            return recording

    def refuse_in_capture(self, what: str) -> None:
        """Raise `Trapped` when something is being captured."""
        if self._recording is not None:
            raise Trapped(what)

    def replay(self, tasks: list[Task]) -> None:
        """Launch what was recorded, on the current stream."""
        with self.lock:
            self.refuse_in_capture("a replay")
            self.counters.replays += 1
            for task in tasks:
                self.current.launch(task, self._host)
