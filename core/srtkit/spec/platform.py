"""The platform contract, `platform/1.1`: one kind of device and everything core asks of it.

Core calls no `torch.cuda`: streams, events, pinned memory, arenas, graphs and collectives come from
here. Facts are torch-free and belong to the descriptor; objects come from `build`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import BaseModel

from srtkit.spec.capabilities import Answer, Descriptor
from srtkit.spec.facts import DeviceFacts

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ArenaTag = Literal["weights", "kv", "graphs", "workspace"]


@dataclass(frozen=True)
class MemoryFigures:
    """Bytes of one device: total, free now, and peak used by this process since the last reset."""

    total: int
    free: int
    peak: int


class Event(ABC):
    """A mark in a stream."""

    @abstractmethod
    def record(self) -> None:
        """Mark the current stream here."""

    @abstractmethod
    def wait(self) -> None:
        """Make the current stream wait for the mark; the host does not."""

    @abstractmethod
    def query(self) -> bool:
        """Whether the mark has been passed."""

    @abstractmethod
    def synchronize(self, timeout: float) -> None:
        """Wait on the host; `EngineError` after `timeout` seconds."""


class Stream(ABC):
    """An order of device work."""

    @abstractmethod
    def __enter__(self) -> Stream:
        """Make it the current stream of this thread."""

    @abstractmethod
    def __exit__(self, *exc: object) -> None:
        """Restore the stream before."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait on the host for all of its work."""


class GraphHandle(ABC):
    """A recorded piece of device work."""

    @abstractmethod
    def replay(self) -> None:
        """Launch it on the current stream."""

    @abstractmethod
    def close(self) -> None:
        """Free it."""


class GraphPrimitives(ABC):
    """Capture and replay; None in `Platform.graphs` where the device has none."""

    @abstractmethod
    def new_pool(self) -> object:
        """A memory pool that several graphs share."""

    @abstractmethod
    def begin(self, pool: object) -> None:
        """Record what this thread launches from here on, instead of doing it. Recordings do not nest."""

    @abstractmethod
    def end(self) -> GraphHandle:
        """What was recorded. On any error nothing is being recorded any more, and the device is usable."""

    @abstractmethod
    def abandon(self) -> None:
        """Drop what is being recorded; nothing if nothing is. Never raises."""

    def capture(self, pool: object, work: Callable[[], None]) -> GraphHandle:
        """Record what `work` launches; errors leave the device usable."""
        self.begin(pool)
        try:
            work()
        except BaseException:
            self.abandon()
            raise
        return self.end()

    def alias(self, tensor: Tensor) -> Tensor:
        """The memory of a tensor that was made while recording, for use between replays, without keeping it from what
        is recorded later. Where graphs share no memory it is the tensor itself.
        """
        return tensor


class Communicator(ABC):
    """Collectives of one group. Each is in place or into a given tensor. A rank is counted within the group, from 0."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor) -> None:
        """Sum over the group, in place."""

    @abstractmethod
    def all_gather(self, out: Tensor, tensor: Tensor) -> None:
        """Concatenate along dimension 0 by rank."""

    @abstractmethod
    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Copy the source rank's tensor to all, in place."""

    @abstractmethod
    def send(self, tensor: Tensor, target: int) -> None:
        """Point to point."""

    @abstractmethod
    def recv(self, tensor: Tensor, source: int) -> None:
        """Point to point, in place."""

    @abstractmethod
    def barrier(self, timeout: float) -> None:
        """Wait for all ranks; `EngineError` after `timeout` seconds."""

    @abstractmethod
    def abort(self) -> None:
        """Break pending collectives after a failure."""


class Platform(ABC):
    """The device objects of one process."""

    @abstractmethod
    def device(self, index: int) -> torch.device:
        """The torch device."""

    @abstractmethod
    def current_stream(self) -> Stream:
        """The stream work is launched on by default."""

    @abstractmethod
    def new_stream(self) -> Stream:
        """Another stream."""

    @abstractmethod
    def new_event(self) -> Event:
        """An event, not yet recorded."""

    @abstractmethod
    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeroed host memory, pinned where the device has it. Freed as a tensor is, when launched copies have ended."""

    @abstractmethod
    def allocate(self, tag: ArenaTag, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeroed device memory of an arena. Raises `OutOfMemory` with both figures."""

    @abstractmethod
    def release(self, tag: ArenaTag) -> Answer:
        """Give an arena's memory back; `restore` brings it to the same addresses, or `No`."""

    @abstractmethod
    def restore(self, tag: ArenaTag) -> None:
        """Undo `release`; contents are undefined."""

    @abstractmethod
    def memory(self, index: int) -> MemoryFigures:
        """Figures of one device."""

    @abstractmethod
    def graphs(self) -> GraphPrimitives | None:
        """Capture and replay, or None."""

    @abstractmethod
    def communicator(self, ranks: Sequence[int], rank: int) -> Communicator:
        """Collectives of a group; a group of one is always possible.

        `ranks` are the group's of the run, ascending, and `rank` is this process's of them. All members call it.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything."""


@dataclass(frozen=True)
class PlatformDefaults:
    """Plugins a platform chooses when the file names none: kind → names in order, and other settings.

    `environment` holds variables that must stand in a rank's environment before it starts (a library
    reads them when it is loaded); one that is set already stays as it is.
    """

    plugins: Mapping[str, tuple[str, ...]]
    dtype: str = "bfloat16"
    memory_fraction: float = 0.88
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PlatformBuild:
    """What core gives a platform at build. Streams, events, arenas and graphs are those of `device_index`."""

    facts: DeviceFacts
    options: BaseModel
    rank: int = 0
    world: int = 1
    needs: Mapping[str, object] | None = None
    device_index: int = 0


class Finding(NamedTuple):
    """One thing that was looked at: `verdict` is "ok", "warn" or "fail"; `detail` is a sentence, with its remedy."""

    verdict: str
    subject: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class PlatformDescriptor(Descriptor):
    """What a plugin's hook returns; all but `build` import no torch.

    `probe(options)`: the devices that are here, [] when absent; never raises for absence.
    `assume(architecture)`: facts from a table without probing, None for an unknown name.
    `defaults(facts)`: the sensible choice of other plugins. `priority` orders detection (CPU is 0).
    `architectures` (1.1): names that `assume` knows, for messages.
    `examine(environment)` (1.1): what `srt doctor` says of this machine, given the variables a rank would have. Reads
    files and nothing slow, and never raises; where the device cannot be, () or one "ok".
    """

    probe: Callable[[BaseModel], Sequence[DeviceFacts]]
    assume: Callable[[str], DeviceFacts | None]
    defaults: Callable[[DeviceFacts], PlatformDefaults]
    build: Callable[[PlatformBuild], Platform]
    priority: int = 0
    architectures: tuple[str, ...] = ()
    examine: Callable[[Mapping[str, str]], Sequence[Finding]] = lambda environment: ()
