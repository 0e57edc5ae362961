"""Transports whose faults only a second process shows."""

from __future__ import annotations

import os
import time
from pathlib import Path

from srtkit.spec.errors import PeerGone, TransportTimeout
from srtkit.spec.transport import Frames, Receiver, Sender
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.transport.simple import (
    Message,
    WrappedReceiver,
    WrappedSender,
    WrappedTransport,
    around,
)


class GoodBye(WrappedTransport):
    """Its receivers leave a note when they close in order."""

    def receiver(self, channel: str) -> Receiver:
        _note(self, channel).unlink(missing_ok=True)
        return super().receiver(channel)

    def close(self) -> None:
        self.inner.close()
        for note in self.build.folder.glob("*.gone"):
            note.unlink(missing_ok=True)


class SaysGoodBye(WrappedReceiver):
    def close(self) -> None:
        _note(self.transport, self.channel).touch()
        self.inner.close()


class NeedsGoodBye(WrappedSender):
    """Believes that its receiver has gone only when there is a note."""

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        try:
            self.inner.send(frames, timeout)
        except PeerGone:
            if _note(self.transport, self.channel).exists():
                raise


class WaitsForTheDead(WrappedSender):
    """While it waits for room, it believes that its receiver has gone only when there is a note."""

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        begin = time.monotonic()
        try:
            self.inner.send(frames, min(timeout, 0.01))
        except TransportTimeout:
            try:
                self.inner.send(frames, max(0, timeout - 0.01))
            except PeerGone:
                if not _note(self.transport, self.channel).exists():
                    time.sleep(max(0, begin + timeout - time.monotonic()))
                raise


def _note(transport: WrappedTransport, channel: str) -> Path:
    return transport.build.folder / f"{channel.encode().hex()}.gone"


class NamedSenders(WrappedTransport):
    """Its senders leave their process id as long as they are open."""

    def close(self) -> None:
        self.inner.close()
        for file in self.build.folder.glob("sender.*"):
            file.unlink(missing_ok=True)


class NamedSender(WrappedSender):
    def __init__(self, inner: Sender, transport: WrappedTransport, channel: str) -> None:
        super().__init__(inner, transport, channel)
        self.file = transport.build.folder / f"sender.{os.getpid()}"
        self.file.touch()

    def close(self) -> None:
        self.inner.close()
        self.file.unlink(missing_ok=True)


class EndsWithASender(WrappedReceiver):
    """Takes the death of one sender for the end of the channel."""

    def receive(self, timeout: float | None) -> Message | None:
        message = self.inner.receive(timeout)
        pids = [file.suffix[1:] for file in self.transport.build.folder.glob("sender.*")]
        if message is None and not all(Path("/proc", pid).exists() for pid in pids):
            raise PeerGone("transport:zmq", "a sender has died")
        return message


class HoldsLarge(WrappedSender):
    """Keeps a large message until the next one, and does not think of it when it closes."""

    held: Message | None = None

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        if self.held:
            self.inner.send(self.held, timeout)
            self.held = None
        if sum(map(len, frames)) > 4 << 20:
            self.held = [bytes(frame) for frame in frames]
        else:
            self.inner.send(frames, timeout)


KEPT: dict[bytes, bytes] = {}


class SendsReferences(WrappedSender):
    """Leaves very large frames in the memory of this process, and sends where they are."""

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        sent = []
        for frame in frames:
            name = b"kept:%d" % len(KEPT)
            if len(frame) > 4 << 20:
                KEPT[name] = bytes(frame)
                frame = name
            sent.append(frame)
        self.inner.send(sent, timeout)


class FollowsReferences(WrappedReceiver):
    def receive(self, timeout: float | None) -> Message | None:
        message = self.inner.receive(timeout)
        return message and [KEPT.pop(frame, frame) for frame in message]


dead_are_silent = mutant(
    "transport.dead_are_silent",
    of="zmq",
    sentence="Notices a receiver that closes, and not one that dies.",
    killed_by=("transport.killed_receiver", "transport.killed_receiver_waiting"),
)(around(GoodBye, NeedsGoodBye, SaysGoodBye))

waits_for_the_dead = mutant(
    "transport.waits_for_the_dead",
    of="zmq",
    sentence="A blocked sender does not notice that its receiver has died.",
    killed_by=("transport.killed_receiver_waiting",),
)(around(GoodBye, WaitsForTheDead, SaysGoodBye))

ends_with_a_sender = mutant(
    "transport.ends_with_a_sender",
    of="zmq",
    sentence="The death of one sender ends the channel for all.",
    killed_by=("transport.killed_sender",),
)(around(NamedSenders, NamedSender, EndsWithASender))

holds_large = mutant(
    "transport.holds_large",
    of="zmq",
    sentence="Closing forgets a large message that was held back.",
    killed_by=("transport.ended_sender",),
)(around(sender=HoldsLarge))

sends_references = mutant(
    "transport.sends_references",
    of="zmq",
    sentence="Large frames do not leave their process.",
    killed_by=("transport.processes",),
)(around(sender=SendsReferences, receiver=FollowsReferences))
