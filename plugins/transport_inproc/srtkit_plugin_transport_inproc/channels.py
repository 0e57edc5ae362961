"""Channels between threads of one process: a bounded queue of messages each. Knows no processes, no files.

Frames are copied to bytes when sent, so that a message is the same thing here as between processes.
"""

from __future__ import annotations

import threading
from collections import deque

from srtkit.spec.errors import PeerGone, TransportError, TransportTimeout
from srtkit.spec.transport import Frames, Receiver, Sender, Transport, TransportBuild
from srtkit_plugin_transport_inproc import InprocOptions

PART = "transport:inproc"
Message = list[bytes]


class Channel:
    """The queue. Senders may use it before the receiver opens; once the receiver has closed, nobody may."""

    def __init__(self, name: str, bound: int) -> None:
        self.name = name
        self.bound = bound
        self.opened = False
        self.closed = False
        self._messages: deque[Message] = deque()
        lock = threading.Lock()
        self._arrived = threading.Condition(lock)
        self._room = threading.Condition(lock)

    def put(self, message: Message, timeout: float) -> None:
        """Append a message, waiting for room. Raises `PeerGone` or `TransportTimeout`."""
        with self._room:
            self._room.wait_for(lambda: self.closed or len(self._messages) < self.bound, timeout)
            if self.closed:
                raise PeerGone(PART, f"the receiver of channel {self.name} has closed")
            if len(self._messages) >= self.bound:
                cause = f"channel {self.name} has been full ({self.bound} messages) for {timeout:g} s"
                raise TransportTimeout(PART, cause, "see why its receiver is behind, or raise transport.options.bound")
            self._messages.append(message)
            self._arrived.notify()

    def take(self, timeout: float | None, most: int) -> list[Message]:
        """Up to `most` messages in order, waiting for the first. Raises `TransportError` when it is closed."""
        with self._arrived:
            self._arrived.wait_for(lambda: self.closed or bool(self._messages), timeout)
            if self.closed:
                raise TransportError(PART, f"the receiver of channel {self.name} is closed")
            taken = [self._messages.popleft() for _ in range(min(most, len(self._messages)))]
            if taken:
                self._room.notify(len(taken))
            return taken

    def close(self) -> None:
        """Drop what is queued; whoever waits wakes up."""
        with self._arrived:
            self.closed = True
            self._messages.clear()
            self._arrived.notify_all()
            self._room.notify_all()


class InprocSender(Sender):
    """Any number of them may share a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._closed = False

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        """Queue a copy of the frames."""
        assert frames, "a message has at least one frame"
        if self._closed:
            raise TransportError(PART, f"this sender of channel {self._channel.name} is closed")
        self._channel.put([bytes(frame) for frame in frames], timeout)

    def close(self) -> None:
        """What was sent is in the channel already."""
        self._closed = True


class InprocReceiver(Receiver):
    """The one reader of a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def receive(self, timeout: float | None) -> Message | None:
        """The next message; a waiting call ends with `TransportError` when another thread closes the transport."""
        taken = self._channel.take(timeout, 1)
        return taken[0] if taken else None

    def drain(self, timeout: float | None) -> list[Message]:
        """All that has arrived."""
        return self._channel.take(timeout, self._channel.bound)

    def close(self) -> None:
        """Senders see `PeerGone` from now on."""
        self._channel.close()


class InprocTransport(Transport):
    """Channels by name; a channel begins with the first end that asks for it."""

    def __init__(self, build: TransportBuild) -> None:
        assert isinstance(build.options, InprocOptions)
        self._bound = build.options.bound
        self._channels: dict[str, Channel] = {}
        self._senders: list[InprocSender] = []
        self._lock = threading.Lock()
        self._closed = False

    def receiver(self, channel: str) -> Receiver:
        """Open the receiving end. Raises `TransportError` while the channel has one."""
        with self._lock:
            found = self._find(channel)
            if found.closed:
                found = self._channels[channel] = Channel(channel, self._bound)
            if found.opened:
                raise TransportError(PART, f"channel {channel} has a receiver already")
            found.opened = True
            return InprocReceiver(found)

    def sender(self, channel: str) -> Sender:
        """Open a sending end."""
        with self._lock:
            sender = InprocSender(self._find(channel))
            self._senders.append(sender)
            return sender

    def close(self) -> None:
        """Close all ends, also those that other threads wait on."""
        with self._lock:
            self._closed = True
            for sender in self._senders:
                sender.close()
            for channel in self._channels.values():
                channel.close()

    def _find(self, name: str) -> Channel:
        if self._closed:
            raise TransportError(PART, "this transport is closed")
        return self._channels.setdefault(name, Channel(name, self._bound))
