"""Platforms whose streams and events do not order what they should. Only an asynchronous device shows it."""

from __future__ import annotations

from srtkit.spec.platform import Event, Platform, Stream
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.platform.wrap import (
    WrappedEvent,
    WrappedPlatform,
    WrappedStream,
    around,
    with_events,
    with_streams,
)


class NeverWaits(WrappedEvent):
    def wait(self) -> None:
        """Trusts that it will be done by then."""


class HostDoesNotWait(WrappedEvent):
    def synchronize(self, timeout: float) -> None:
        """Trusts that it is done by now."""


class AlwaysPassed(WrappedEvent):
    def query(self) -> bool:
        return True


class StaysCurrent(WrappedStream):
    """Leaving the block changes nothing; the next one starts from here."""

    def __exit__(self, *exc: object) -> None:
        """Nothing."""


class WaitsForCurrent(WrappedStream):
    def synchronize(self) -> None:
        self.platform.current_stream().synchronize()


class FewStreamsWait(WrappedPlatform):
    """Waiting for events works on the first new stream, and on the one that was there."""

    def __init__(self, inner: Platform) -> None:
        super().__init__(inner)
        self.made = 0
        self.deaf = 0

    def new_stream(self) -> Stream:
        self.made += 1
        inner = self.inner.new_stream()
        return inner if self.made == 1 else DeafStream(inner, self)

    def new_event(self) -> Event:
        return DeafEvent(self.inner.new_event(), self)


class DeafStream(WrappedStream):
    def __enter__(self) -> Stream:
        assert isinstance(self.platform, FewStreamsWait)
        self.platform.deaf += 1
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        assert isinstance(self.platform, FewStreamsWait)
        self.platform.deaf -= 1
        super().__exit__(*exc)


class DeafEvent(WrappedEvent):
    def wait(self) -> None:
        assert isinstance(self.platform, FewStreamsWait)
        if not self.platform.deaf:
            super().wait()


never_waits = mutant(
    "platform.never_waits",
    of="fakedev",
    sentence="Waiting for an event of another stream does nothing.",
    killed_by=("platform.events",),
)(with_events(NeverWaits))

host_does_not_wait = mutant(
    "platform.host_does_not_wait",
    of="fakedev",
    sentence="Event.synchronize returns at once.",
    killed_by=("platform.event_synchronize",),
)(with_events(HostDoesNotWait))

always_passed = mutant(
    "platform.always_passed",
    of="fakedev",
    sentence="query says yes while the work still runs.",
    killed_by=("platform.event_query",),
)(with_events(AlwaysPassed))

stays_current = mutant(
    "platform.stays_current",
    of="fakedev",
    sentence="A stream stays current after its block.",
    killed_by=("platform.current_stream",),
)(with_streams(StaysCurrent))

waits_for_current = mutant(
    "platform.waits_for_current",
    of="fakedev",
    sentence="Stream.synchronize waits for the current stream in place of its own.",
    killed_by=("platform.stream_synchronize",),
)(with_streams(WaitsForCurrent))

few_streams_wait = mutant(
    "platform.few_streams_wait",
    of="fakedev",
    sentence="From the second new stream on, waiting for an event does nothing.",
    killed_by=("platform.traffic",),
)(around(FewStreamsWait))
