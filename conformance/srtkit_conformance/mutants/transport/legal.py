"""Legal transports: another structure, the smallest bound, several receivers, copies on the way."""

from __future__ import annotations

from srtkit.spec.transport import Frames, Receiver, Sender, TransportBuild
from srtkit_conformance.mutant import variant
from srtkit_conformance.mutants.transport.simple import (
    SimpleChannel,
    SimpleReceiver,
    SimpleSender,
    SimpleTransport,
    WrappedSender,
    around,
    simple,
    with_fan_out,
)


class BoundOfOne(SimpleChannel):
    bound = 1


class ManyReceivers(SimpleTransport):
    """Every receiver has a list of its own, and a sender puts each message into all of them."""

    def __init__(self, build: TransportBuild) -> None:
        super().__init__(build)
        self.lists: dict[str, list[SimpleChannel]] = {}

    def receiver(self, channel: str) -> Receiver:
        self.refuse_if_closed()
        lists = self.lists_of(channel)
        mine = next((one for one in lists if not one.opened), SimpleChannel())
        if mine not in lists:
            lists.append(mine)
        mine.opened = True
        return SimpleReceiver(mine)

    def sender(self, channel: str) -> Sender:
        self.refuse_if_closed()
        self.senders.append(SenderToAll(self.lists_of(channel)))
        return self.senders[-1]

    def close(self) -> None:
        super().close()
        for lists in self.lists.values():
            for one in lists:
                one.close()

    def lists_of(self, name: str) -> list[SimpleChannel]:
        """Those of a channel; one for the first receiver to come."""
        return self.lists.setdefault(name, [SimpleChannel()])


class SenderToAll(SimpleSender):
    def __init__(self, lists: list[SimpleChannel]) -> None:
        super().__init__(lists[0])
        self.lists = lists

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        for one in [one for one in self.lists if not one.closed] or self.lists:
            self.channel = one
            super().send(frames, timeout)


class CopyingSender(WrappedSender):
    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        self.inner.send([bytes(bytearray(frame)) for frame in frames], timeout)


simple_list = variant("transport.simple", of="inproc", sentence="A list under one lock.")(simple())
bound_of_one = variant("transport.bound_of_one", of="inproc", sentence="A sender may be one message ahead.")(
    simple(channel=BoundOfOne)
)
copies = variant("transport.copies", of="zmq", sentence="Copies every frame twice.")(around(sender=CopyingSender))
many_receivers = variant("transport.many_receivers", of="inproc", sentence="Gives every receiver every message.")(
    with_fan_out(simple(ManyReceivers))
)
