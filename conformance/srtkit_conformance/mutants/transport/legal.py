"""Legal transports: another structure, the smallest bound, several receivers, copies on the way."""

from __future__ import annotations

from srtkit.spec.capabilities import YES
from srtkit.spec.transport import Frames, Receiver
from srtkit_conformance.mutant import variant
from srtkit_conformance.mutants.transport.simple import (
    Answers,
    SimpleChannel,
    SimpleReceiver,
    SimpleSender,
    SimpleTransport,
    WrappedSender,
    around,
    declaring,
    simple,
)


class BoundOfOne(SimpleChannel):
    bound = 1


class ManyReceivers(SimpleTransport):
    """Every receiver has a channel of its own, and a sender puts each message into all of them."""

    def receiver(self, channel: str) -> Receiver:
        self.refuse_if_closed()
        number = sum(1 for name in self.channels if name.startswith(f"{channel}#"))
        return super().receiver(f"{channel}#{number}")

    def sender(self, channel: str) -> SimpleSender:
        self.refuse_if_closed()
        if f"{channel}#0" not in self.channels:
            self.find(f"{channel}#0")  # for the first receiver to come
        self.senders.append(_ToAll(self, channel))
        return self.senders[-1]

    def find(self, name: str) -> SimpleChannel:
        first = self.channels.get(name)
        return super().find(name) if first is None or not first.opened else first


class _ToAll(SimpleSender):
    def __init__(self, transport: ManyReceivers, channel: str) -> None:
        super().__init__(transport.find(f"{channel}#0"))
        self.transport = transport
        self.name = channel

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        for name, channel in list(self.transport.channels.items()):
            if name.startswith(f"{self.name}#"):
                self.channel = channel
                super().send(frames, timeout)


class CopyingSender(WrappedSender):
    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        self.inner.send([bytes(bytearray(frame)) for frame in frames], timeout)


simple_list = variant("transport.simple", of="inproc", sentence="A list under one lock.")(simple())
bound_of_one = variant("transport.bound_of_one", of="inproc", sentence="A sender may be one message ahead.")(
    simple(channel=BoundOfOne, receiver=SimpleReceiver)
)
copies = variant("transport.copies", of="zmq", sentence="Copies every frame twice.")(around(sender=CopyingSender))
many_receivers = variant("transport.many_receivers", of="inproc", sentence="Gives every receiver every message.")(
    declaring(simple(ManyReceivers), Answers(fan_out=YES))
)
