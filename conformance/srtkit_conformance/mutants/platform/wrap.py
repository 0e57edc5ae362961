"""A platform that hands every call to another one: a fault overrides one method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from srtkit.spec.capabilities import Answer
from srtkit.spec.platform import (
    ArenaTag,
    Communicator,
    Event,
    GraphPrimitives,
    MemoryFigures,
    Platform,
    PlatformBuild,
    PlatformDescriptor,
    Stream,
)


class WrappedPlatform(Platform):
    """Legal as it stands."""

    def __init__(self, inner: Platform) -> None:
        self.inner = inner

    def device(self, index: int) -> torch.device:
        return self.inner.device(index)

    def current_stream(self) -> Stream:
        return self.inner.current_stream()

    def new_stream(self) -> Stream:
        return self.inner.new_stream()

    def new_event(self) -> Event:
        return self.inner.new_event()

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return self.inner.host_buffer(shape, dtype)

    def allocate(self, tag: ArenaTag, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return self.inner.allocate(tag, shape, dtype)

    def release(self, tag: ArenaTag) -> Answer:
        return self.inner.release(tag)

    def restore(self, tag: ArenaTag) -> None:
        self.inner.restore(tag)

    def memory(self, index: int) -> MemoryFigures:
        return self.inner.memory(index)

    def graphs(self) -> GraphPrimitives | None:
        return self.inner.graphs()

    def communicator(self, ranks: Sequence[int], rank: int) -> Communicator:
        return self.inner.communicator(ranks, rank)

    def close(self) -> None:
        self.inner.close()


class WrappedEvent(Event):
    """Legal as it stands."""

    def __init__(self, inner: Event, platform: Platform) -> None:
        self.inner, self.platform = inner, platform

    def record(self) -> None:
        self.inner.record()

    def wait(self) -> None:
        self.inner.wait()

    def query(self) -> bool:
        return self.inner.query()

    def synchronize(self, timeout: float) -> None:
        self.inner.synchronize(timeout)


class WrappedStream(Stream):
    """Legal as it stands."""

    def __init__(self, inner: Stream, platform: Platform) -> None:
        self.inner, self.platform = inner, platform

    def __enter__(self) -> Stream:
        self.inner.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.inner.__exit__(*exc)

    def synchronize(self) -> None:
        self.inner.synchronize()


Make = Callable[[PlatformDescriptor], PlatformDescriptor]


def around(wrapper: Callable[[Platform], Platform]) -> Make:
    """A descriptor whose platform is wrapped."""

    def make(descriptor: PlatformDescriptor) -> PlatformDescriptor:
        def build(request: PlatformBuild) -> Platform:
            return wrapper(descriptor.build(request))

        return replace(descriptor, build=build)

    return make


def with_events(event: Callable[[Event, Platform], Event]) -> Make:
    """A descriptor whose events are wrapped."""

    class WithEvents(WrappedPlatform):
        def new_event(self) -> Event:
            return event(self.inner.new_event(), self.inner)

    return around(WithEvents)


def with_streams(stream: Callable[[Stream, Platform], Stream]) -> Make:
    """A descriptor whose new streams are wrapped."""

    class WithStreams(WrappedPlatform):
        def new_stream(self) -> Stream:
            return stream(self.inner.new_stream(), self.inner)

    return around(WithStreams)
