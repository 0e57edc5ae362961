"""Streams: tasks in the order of their launch, done as late as possible, so that nothing is right by luck.

A task runs only when somebody waits for it. Whether two streams were ordered is judged at launch (order.py);
what a host buffer holds is judged when the task runs. Knows no operators.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from srtkit.spec.errors import EngineError
from srtkit_plugin_platform_fakedev.faults import PART, RaceFound
from srtkit_plugin_platform_fakedev.order import Clock, History, Use, join

POISON = 0xFF
"""Bytes of memory that nobody has written: NaN as floating point, -1 as an integer."""


@dataclass(frozen=True)
class Span:
    """Bytes [start, stop) of some memory that a task uses."""

    history: History
    start: int
    stop: int
    writes: bool


@dataclass(frozen=True)
class Task:
    """Something for the device to do, as often as it is launched.

    `source` is a host tensor that it reads, `target` one that it writes, when it runs and not before.
    """

    name: str
    run: Callable[[], object]
    spans: tuple[Span, ...]
    source: Tensor | None = None
    target: Tensor | None = None


@dataclass
class Mark:
    """A place in a stream, and everything that comes before it."""

    queue: Queue
    clock: Clock
    passed: bool = False


@dataclass(frozen=True)
class _Launched:
    """A task with the state in which it found the host memory it reads."""

    task: Task
    digest: int


@dataclass(eq=False)
class Queue:
    """One stream's tasks, marks, and marks of others that it waits for (`awaited`)."""

    number: int
    clock: Clock = field(default_factory=dict)
    launched: int = 0
    waiting: deque[_Launched | Mark | tuple[Mark]] = field(default_factory=deque)

    def launch(self, task: Task, host: Clock) -> None:
        """Append a task. Raises `RaceFound` when it may run beside another that it must not run beside."""
        join(self.clock, host)
        who = f"task {self.launched + 1} of stream {self.number} ({task.name})"
        for span in task.spans:
            span.history.check(who, (span.start, span.stop), span.writes, self.clock)
        self.launched += 1
        self.clock[self.number] = self.launched
        for span in task.spans:
            span.history.note(Use(self.number, self.launched, span.start, span.stop, span.writes, task.name))
        self.waiting.append(_Launched(task, digest(task.source)))
        poison(task.target)

    def mark(self) -> Mark:
        """Append a mark."""
        mark = Mark(self, dict(self.clock))
        self.waiting.append(mark)
        return mark

    def wait(self, mark: Mark) -> None:
        """What is launched from now on comes after the mark."""
        join(self.clock, mark.clock)
        self.waiting.append((mark,))

    def run(self, upto: Mark | None = None) -> None:
        """Run everything, or everything before a mark."""
        while self.waiting and not (upto is not None and upto.passed):
            self.step()

    def step(self) -> bool:
        """Run one thing; whether it was a task. Raises what the task found, as `EngineError`."""
        one = self.waiting.popleft()
        if isinstance(one, Mark):
            one.passed = True
            return False
        if isinstance(one, tuple):
            (mark,) = one
            mark.queue.run(mark)
            return False
        _run(one)
        return True


def _run(launched: _Launched) -> None:
    task = launched.task
    if digest(task.source) != launched.digest:
        raise RaceFound(f"the host overwrote a buffer before {task.name}, launched earlier, had read it")
    try:
        with torch.inference_mode():
            task.run()
    except Exception as error:
        raise EngineError(PART, f"{task.name} failed on the device: {error}") from error


def digest(tensor: Tensor | None) -> int:
    """A number that differs, as good as surely, when any byte differs."""
    return 0 if tensor is None else zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def poison(tensor: Tensor | None) -> None:
    """Fill a host tensor with `POISON`: what it held is gone, what it will hold is not there yet."""
    if tensor is not None and tensor.numel():
        with torch.inference_mode():
            whole = torch.full((tensor.numel() * tensor.dtype.itemsize,), POISON, dtype=torch.uint8)
            tensor.copy_(whole.view(tensor.dtype).view(tensor.shape))
