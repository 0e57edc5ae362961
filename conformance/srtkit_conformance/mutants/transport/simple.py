"""A second transport inside one process, a list under one lock, and a wrapper around any transport.

Legal as they stand; their methods are small so that a mutant can replace one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from pydantic import BaseModel

from srtkit.spec.capabilities import YES
from srtkit.spec.errors import PeerGone, TransportError, TransportTimeout
from srtkit.spec.transport import (
    Frames,
    Receiver,
    Sender,
    Transport,
    TransportBuild,
    TransportCapabilities,
    TransportDescriptor,
)

PART = "transport:simple"
Message = list[bytes]


class SimpleChannel:
    """Messages in a list. `opened` and `closed` tell of the receiver."""

    bound = 64

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.opened = self.closed = False
        self.changed = threading.Condition()

    def put(self, message: Message, timeout: float) -> None:
        """Append, when there is room."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.closed or self.has_room(), timeout):
                raise TransportTimeout(PART, f"the channel has been full for {timeout:g} s")
            if self.closed:
                raise PeerGone(PART, "the receiver has closed")
            self.messages.append(message)
            self.changed.notify_all()

    def take(self, timeout: float | None) -> list[Message]:
        """All there is, after waiting for the first."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or bool(self.messages), timeout)
            if self.closed:
                raise TransportError(PART, "this receiver is closed")
            taken, self.messages = self.messages, []
            self.changed.notify_all()
            return taken

    def has_room(self) -> bool:
        """Whether a sender need not wait."""
        return len(self.messages) < self.bound

    def close(self) -> None:
        """The receiver has closed."""
        with self.changed:
            self.closed = True
            self.messages = []
            self.changed.notify_all()


class SimpleSender(Sender):
    """Copies what it is given."""

    def __init__(self, channel: SimpleChannel) -> None:
        self.channel = channel
        self.closed = False

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        if self.closed:
            raise TransportError(PART, "this sender is closed")
        self.channel.put(self.copied(frames), timeout)

    def close(self) -> None:
        self.closed = True

    def copied(self, frames: Frames) -> Message:
        """The message as it is stored."""
        return [bytes(frame) for frame in frames]


class SimpleReceiver(Receiver):
    """Takes all messages at once and hands them out one by one."""

    def __init__(self, channel: SimpleChannel) -> None:
        self.channel = channel
        self.mine: list[Message] = []

    def receive(self, timeout: float | None) -> Message | None:
        if not self.mine or self.channel.closed:
            self.mine = self.channel.take(timeout)
        return self.mine.pop(0) if self.mine else None

    def drain(self, timeout: float | None) -> list[Message]:
        taken = self.mine or self.channel.take(timeout)
        self.mine = []
        return taken

    def close(self) -> None:
        self.channel.close()


class SimpleTransport(Transport):
    """Channels by name."""

    channel_type: type[SimpleChannel] = SimpleChannel
    sender_type: type[SimpleSender] = SimpleSender
    receiver_type: type[SimpleReceiver] = SimpleReceiver

    def __init__(self, build: TransportBuild) -> None:
        self.build = build
        self.channels: dict[str, SimpleChannel] = {}
        self.senders: list[SimpleSender] = []
        self.closed = False

    def receiver(self, channel: str) -> Receiver:
        self.refuse_if_closed()
        found = self.find(channel)
        if found.opened and not found.closed:
            raise TransportError(PART, f"channel {channel} has a receiver already")
        if found.closed:
            found = self.channels[self.key(channel)] = self.channel_type()
        found.opened = True
        return self.receiver_type(found)

    def sender(self, channel: str) -> Sender:
        self.refuse_if_closed()
        self.senders.append(self.sender_type(self.find(channel)))
        return self.senders[-1]

    def close(self) -> None:
        self.closed = True
        for sender in self.senders:
            sender.close()
        for channel in self.channels.values():
            channel.close()

    def find(self, name: str) -> SimpleChannel:
        """The channel of that name."""
        return self.channels.setdefault(self.key(name), self.channel_type())

    def key(self, name: str) -> str:
        """What tells channels apart."""
        return name

    def refuse_if_closed(self) -> None:
        """Raise when it is closed."""
        if self.closed:
            raise TransportError(PART, "this transport is closed")


class WrappedSender(Sender):
    """Hands every call to `inner`; a fault overrides one."""

    def __init__(self, inner: Sender, transport: WrappedTransport, channel: str) -> None:
        self.inner = inner
        self.transport = transport
        self.channel = channel

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        self.inner.send(frames, timeout)

    def close(self) -> None:
        self.inner.close()


class WrappedReceiver(Receiver):
    """Hands every call to `inner`; a fault overrides one."""

    def __init__(self, inner: Receiver, transport: WrappedTransport, channel: str) -> None:
        self.inner = inner
        self.transport = transport
        self.channel = channel

    def receive(self, timeout: float | None) -> Message | None:
        return self.inner.receive(timeout)

    def drain(self, timeout: float | None) -> list[Message]:
        return self.inner.drain(timeout)

    def close(self) -> None:
        self.inner.close()


class WrappedTransport(Transport):
    """Hands every call to `inner`, and wraps the ends that it opens."""

    sender_type: type[WrappedSender] = WrappedSender
    receiver_type: type[WrappedReceiver] = WrappedReceiver

    def __init__(self, inner: Transport, build: TransportBuild) -> None:
        self.inner = inner
        self.build = build

    def receiver(self, channel: str) -> Receiver:
        return self.receiver_type(self.inner.receiver(channel), self, channel)

    def sender(self, channel: str) -> Sender:
        return self.sender_type(self.inner.sender(channel), self, channel)

    def close(self) -> None:
        self.inner.close()


Make = Callable[[TransportDescriptor], TransportDescriptor]


def around(
    wrapper: type[WrappedTransport] = WrappedTransport,
    sender: type[WrappedSender] = WrappedSender,
    receiver: type[WrappedReceiver] = WrappedReceiver,
) -> Make:
    """The plugin's transport inside a wrapper, its ends inside others."""
    ends = type("Around", (wrapper,), {"sender_type": sender, "receiver_type": receiver})
    return lambda descriptor: replace(descriptor, build=lambda args: ends(descriptor.build(args), args))


def simple(
    transport: type[SimpleTransport] = SimpleTransport,
    channel: type[SimpleChannel] = SimpleChannel,
    sender: type[SimpleSender] = SimpleSender,
    receiver: type[SimpleReceiver] = SimpleReceiver,
) -> Make:
    """A simple transport in place of the plugin's, with some parts replaced."""
    parts = {"channel_type": channel, "sender_type": sender, "receiver_type": receiver}
    made: type[SimpleTransport] = type("Simple", (transport,), parts)
    return lambda descriptor: replace(descriptor, build=made)


def with_fan_out(make: Make) -> Make:
    """The same, declaring that a channel may have several receivers."""

    def made(descriptor: TransportDescriptor) -> TransportDescriptor:
        def capabilities(options: BaseModel) -> TransportCapabilities:
            return replace(descriptor.capabilities(options), fan_out=YES)

        return replace(make(descriptor), capabilities=capabilities)

    return made
