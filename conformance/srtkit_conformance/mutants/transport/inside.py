"""Transports that lose, change, reorder or hold up messages, or close badly: faults that one process shows."""

from __future__ import annotations

import time

from srtkit.spec.errors import PeerGone, TransportTimeout
from srtkit.spec.transport import Frames, Receiver
from srtkit_conformance.kits.transport.sides import FULL
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.transport.simple import (
    Message,
    SimpleChannel,
    SimpleReceiver,
    SimpleSender,
    SimpleTransport,
    WrappedReceiver,
    WrappedSender,
    WrappedTransport,
    around,
    simple,
)


class CutsLarge(WrappedSender):
    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        self.inner.send([frame[: 1 << 20] for frame in frames], timeout)


class CutsHuge(WrappedSender):
    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        self.inner.send([frame[: 32 << 20] for frame in frames], timeout)


class DropsEmptyLast(WrappedSender):
    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        kept = frames if len(frames) == 1 or len(frames[-1]) else frames[:-1]
        self.inner.send(kept, timeout)


class KeepsViews(SimpleSender):
    def copied(self, frames: Frames) -> Message:
        return frames  # type: ignore[return-value]


class LargeFirst(SimpleReceiver):
    """Hands out large messages before small ones."""

    def drain(self, timeout: float | None) -> list[Message]:
        return sorted(super().drain(timeout), key=_size, reverse=True)

    def receive(self, timeout: float | None) -> Message | None:
        if not self.mine or self.channel.closed:
            self.mine = sorted(self.channel.take(timeout), key=_size, reverse=True)
        return self.mine.pop(0) if self.mine else None


def _size(message: Message) -> int:
    return sum(map(len, message)) // 4000


class SendsTwice(WrappedSender):
    """Every thousandth message goes twice, as after a retry."""

    count = 0

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        self.inner.send(frames, timeout)
        self.count += 1
        if self.count % 1000 == 0:
            self.inner.send(frames, timeout)


class DrainKeepsTwo(WrappedReceiver):
    """Gives two messages of what has arrived, and forgets the others."""

    def drain(self, timeout: float | None) -> list[Message]:
        return self.inner.drain(timeout)[:2]


class PlainNames(SimpleTransport):
    """Leaves out of a channel's name what a file name may not hold."""

    def key(self, name: str) -> str:
        return "".join(letter for letter in name if letter.isalnum())


class DropsEarly(SimpleChannel):
    def put(self, message: Message, timeout: float) -> None:
        if self.opened:
            super().put(message, timeout)


class AnswersEmpty(WrappedReceiver):
    def receive(self, timeout: float | None) -> Message | None:
        return self.inner.receive(timeout) or []


class Milliseconds(WrappedReceiver):
    def receive(self, timeout: float | None) -> Message | None:
        return self.inner.receive(None if timeout is None else timeout / 20)

    def drain(self, timeout: float | None) -> list[Message]:
        return self.inner.drain(None if timeout is None else timeout / 20)


class NeverForEver(WrappedReceiver):
    def receive(self, timeout: float | None) -> Message | None:
        return self.inner.receive(0.05 if timeout is None else timeout)


class Unbounded(SimpleChannel):
    def has_room(self) -> bool:
        return True


class SendsAfterTimeout(SimpleChannel):
    """A message that could not be sent in time is queued all the same."""

    def put(self, message: Message, timeout: float) -> None:
        try:
            super().put(message, timeout)
        except TransportTimeout:
            self.messages.append(message)
            raise


class WaitsForEver(SimpleChannel):
    """Keeps a sender waiting for three seconds more than it asked for."""

    def put(self, message: Message, timeout: float) -> None:
        super().put(message, timeout if timeout == FULL else timeout + 3)


class LosesWaiting(SimpleChannel):
    """A message that had to wait for room is gone."""

    def put(self, message: Message, timeout: float) -> None:
        waits = not self.has_room()
        super().put(message, timeout)
        if waits:
            self.messages.remove(message)


class NeverGone(WrappedSender):
    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        try:
            self.inner.send(frames, timeout)
        except PeerGone:
            return


class GoneWhenAsked(SimpleChannel):
    """Whoever waits for room does not see that the receiver has closed."""

    def put(self, message: Message, timeout: float) -> None:
        with self.changed:
            waits = not self.closed and not self.has_room()
            if waits:
                self.changed.wait_for(lambda: not self.closed and self.has_room(), timeout)
        super().put(message, 0 if waits else timeout)


class ForgetsQueued(SimpleSender):
    """Takes what is still queued with it when it closes."""

    def close(self) -> None:
        if not self.closed:
            del self.channel.messages[-3:]
        super().close()


class ClosesSlowly(WrappedSender):
    def close(self) -> None:
        time.sleep(1.8)
        self.inner.close()


class ClosesOnce(WrappedReceiver):
    done = False

    def close(self) -> None:
        if self.done:
            raise ValueError("close of a closed receiver")
        self.done = True
        self.inner.close()


class LeavesFile(WrappedTransport):
    def receiver(self, channel: str) -> Receiver:
        (self.build.folder / "claim").touch()
        return super().receiver(channel)


class TwoReceivers(SimpleTransport):
    """Lets a second receiver share the messages of the first."""

    def receiver(self, channel: str) -> Receiver:
        self.refuse_if_closed()
        found = self.find(channel)
        found.opened = True
        return SimpleReceiver(found)


cuts_large = mutant(
    "transport.cuts_large",
    of="inproc",
    sentence="Cuts a frame at a megabyte.",
    killed_by=("transport.bytes", "transport.large"),
)(around(sender=CutsLarge))

cuts_huge = mutant(
    "transport.cuts_huge",
    of="inproc",
    sentence="Cuts a frame at 32 MiB.",
    killed_by=("transport.large",),
)(around(sender=CutsHuge))

drops_empty_last = mutant(
    "transport.drops_empty_last",
    of="inproc",
    sentence="Drops the last frame of a message when it is empty.",
    killed_by=("transport.frames",),
)(around(sender=DropsEmptyLast))

keeps_views = mutant(
    "transport.keeps_views",
    of="inproc",
    sentence="Keeps the caller's buffers.",
    killed_by=("transport.reuse",),
)(simple(sender=KeepsViews))

large_first = mutant(
    "transport.large_first",
    of="inproc",
    sentence="Hands out large messages before small ones.",
    killed_by=("transport.order",),
)(simple(receiver=LargeFirst))

sends_twice = mutant(
    "transport.sends_twice",
    of="inproc",
    sentence="Delivers one message in a thousand twice.",
    killed_by=("transport.order",),
)(around(sender=SendsTwice))

drain_keeps_two = mutant(
    "transport.drain_keeps_two",
    of="inproc",
    sentence="drain forgets all but two messages.",
    killed_by=("transport.drain",),
)(around(receiver=DrainKeepsTwo))

plain_names = mutant(
    "transport.plain_names",
    of="inproc",
    sentence="Takes two channels for one when their names differ in punctuation.",
    killed_by=("transport.channels",),
)(simple(PlainNames))

drops_early = mutant(
    "transport.drops_early",
    of="inproc",
    sentence="Drops what is sent before there is a receiver.",
    killed_by=("transport.sender_first",),
)(simple(channel=DropsEarly))

answers_empty = mutant(
    "transport.answers_empty",
    of="inproc",
    sentence="receive answers with an empty message when none came.",
    killed_by=("transport.receive_timeout",),
)(around(receiver=AnswersEmpty))

milliseconds = mutant(
    "transport.milliseconds",
    of="inproc",
    sentence="A receiver waits a twentieth of what it was asked to.",
    killed_by=("transport.receive_timeout",),
)(around(receiver=Milliseconds))

never_for_ever = mutant(
    "transport.never_for_ever",
    of="inproc",
    sentence="receive without limit ends after a while.",
    killed_by=("transport.receive_forever",),
)(around(receiver=NeverForEver))

unbounded = mutant(
    "transport.unbounded",
    of="inproc",
    sentence="Never stops a sender.",
    killed_by=("transport.back_pressure",),
)(simple(channel=Unbounded))

sends_after_timeout = mutant(
    "transport.sends_after_timeout",
    of="inproc",
    sentence="Delivers a message although it said that it could not.",
    killed_by=("transport.back_pressure",),
)(simple(channel=SendsAfterTimeout))

waits_for_ever = mutant(
    "transport.waits_for_ever",
    of="inproc",
    sentence="Ignores the timeout of send.",
    killed_by=("transport.send_timeout",),
)(simple(channel=WaitsForEver))

loses_waiting = mutant(
    "transport.loses_waiting",
    of="inproc",
    sentence="Loses a message that had to wait for room.",
    killed_by=("transport.resume",),
)(simple(channel=LosesWaiting))

never_gone = mutant(
    "transport.never_gone",
    of="inproc",
    sentence="Never says that the receiver has gone.",
    killed_by=("transport.closed_receiver",),
)(around(sender=NeverGone))

gone_when_asked = mutant(
    "transport.gone_when_asked",
    of="inproc",
    sentence="A blocked sender does not notice that the receiver has closed.",
    killed_by=("transport.closed_receiver_waiting",),
)(simple(channel=GoneWhenAsked))

forgets_queued = mutant(
    "transport.forgets_queued",
    of="inproc",
    sentence="Closing a sender takes its last messages away.",
    killed_by=("transport.close_delivers",),
)(simple(sender=ForgetsQueued))

closes_slowly = mutant(
    "transport.closes_slowly",
    of="inproc",
    sentence="Closing takes seconds.",
    killed_by=("transport.close_in_time",),
)(around(sender=ClosesSlowly))

closes_once = mutant(
    "transport.closes_once",
    of="inproc",
    sentence="A receiver cannot be closed twice.",
    killed_by=("transport.closed",),
)(around(receiver=ClosesOnce))

leaves_file = mutant(
    "transport.leaves_file",
    of="inproc",
    sentence="Leaves a file behind.",
    killed_by=("transport.leaves_nothing",),
)(around(LeavesFile))

two_receivers = mutant(
    "transport.two_receivers",
    of="inproc",
    sentence="Lets two receivers share a channel.",
    killed_by=("transport.fan_out",),
)(simple(TwoReceivers))
