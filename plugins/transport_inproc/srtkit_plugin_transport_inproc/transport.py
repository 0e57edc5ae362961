"""Bounded queues under one condition each. Frames are copied on send, so both sides may reuse their memory."""

from __future__ import annotations

import threading
from collections import deque
from typing import final

from srtkit.spec.errors import PeerGone, TransportTimeout
from srtkit.spec.transport import Frames, Receiver, Sender, Transport

PART = "transport:inproc"


class _Channel:
    """The queue of one channel; `closed` once its receiver is."""

    def __init__(self, name: str, bound: int) -> None:
        self.name = name
        self.bound = bound
        self.messages: deque[list[bytes]] = deque()
        self.changed = threading.Condition()
        self.closed = False


@final
class InprocSender(Sender):
    """Appends to the channel's queue."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._closed = False

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        """Copy and queue."""
        channel, message = self._channel, [bytes(frame) for frame in frames]
        with channel.changed:
            room = channel.changed.wait_for(lambda: channel.closed or len(channel.messages) < channel.bound, timeout)
            if channel.closed or self._closed:
                raise PeerGone(PART, f"the channel {channel.name!r} is closed")
            if not room:
                raise TransportTimeout(
                    PART, f"the receiver of {channel.name!r} is {channel.bound} messages behind for {timeout:g} s"
                )
            channel.messages.append(message)
            channel.changed.notify_all()

    def close(self) -> None:
        """Queued messages stay."""
        self._closed = True


@final
class InprocReceiver(Receiver):
    """Takes from the channel's queue."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel

    def receive(self, timeout: float | None) -> list[bytes] | None:
        """One message."""
        channel = self._channel
        with channel.changed:
            if not channel.changed.wait_for(lambda: channel.messages or channel.closed, timeout):
                return None
            message = channel.messages.popleft() if channel.messages else None
            channel.changed.notify_all()
            return message

    def drain(self, timeout: float | None) -> list[list[bytes]]:
        """All messages there are."""
        channel = self._channel
        with channel.changed:
            channel.changed.wait_for(lambda: channel.messages or channel.closed, timeout)
            messages = list(channel.messages)
            channel.messages.clear()
            channel.changed.notify_all()
            return messages

    def close(self) -> None:
        """Senders get `PeerGone` from now on."""
        with self._channel.changed:
            self._channel.closed = True
            self._channel.changed.notify_all()


@final
class InprocTransport(Transport):
    """One set of named channels."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._channels: dict[str, _Channel] = {}
        self._lock = threading.Lock()

    def receiver(self, channel: str) -> Receiver:
        """The receiving end."""
        return InprocReceiver(self._channel(channel))

    def sender(self, channel: str) -> Sender:
        """A sending end."""
        return InprocSender(self._channel(channel))

    def close(self) -> None:
        """Close every channel."""
        for channel in self._channels.values():
            InprocReceiver(channel).close()

    def _channel(self, name: str) -> _Channel:
        with self._lock:
            return self._channels.setdefault(name, _Channel(name, self._bound))
