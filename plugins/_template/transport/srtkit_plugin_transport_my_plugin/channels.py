"""Channels as bounded queues in memory, between the threads of one process. Looks into no message."""

from __future__ import annotations

import threading
from collections import deque
from typing import final

from srtkit.spec.errors import PeerGone, TransportError, TransportTimeout
from srtkit.spec.transport import Frames, Receiver, Sender, Transport

PART = "transport:my-plugin"


@final
class Channel:
    """The queue that both ends share. All state is guarded by `_changed`."""

    def __init__(self, name: str, bound: int) -> None:
        self.name = name
        self._bound = bound
        self._messages: deque[list[bytes]] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def put(self, message: list[bytes], timeout: float) -> None:
        """Append. Raises `TransportTimeout` while the queue is full, `PeerGone` once the receiver has closed."""
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._closed or len(self._messages) < self._bound, timeout)
            if self._closed:
                raise PeerGone(PART, f"the receiver of {self.name} has closed")
            if not in_time:
                raise TransportTimeout(PART, f"{self.name} stayed full for {timeout} s", "raise bound in the options")
            self._messages.append(message)
            self._changed.notify_all()

    def take(self, most: int | None, timeout: float | None) -> list[list[bytes]]:
        """Up to `most` messages; waits for the first. Raises `TransportError` once the receiver has closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._closed, timeout)
            if self._closed:
                raise TransportError(PART, f"the receiver of {self.name} was closed")
            count = len(self._messages) if most is None else min(most, len(self._messages))
            taken = [self._messages.popleft() for _ in range(count)]
            self._changed.notify_all()
        return taken

    def close(self) -> None:
        """Drop what waits, and wake whoever waits."""
        with self._changed:
            self._closed = True
            self._messages.clear()
            self._changed.notify_all()


@final
class MyPluginSender(Sender):
    """A sending end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._open = True

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        """Queue copies of the frames."""
        if not self._open:
            raise TransportError(PART, f"this sender of {self._channel.name} was closed")
        self._channel.put([bytes(frame) for frame in frames], timeout)

    def close(self) -> None:
        """What was queued is with the receiver already."""
        self._open = False


@final
class MyPluginReceiver(Receiver):
    """The receiving end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def receive(self, timeout: float | None) -> list[bytes] | None:
        """The oldest message."""
        return next(iter(self._channel.take(1, timeout)), None)

    def drain(self, timeout: float | None) -> list[list[bytes]]:
        """Every message."""
        return self._channel.take(None, timeout)

    def close(self) -> None:
        """Senders see `PeerGone` from now on."""
        self._channel.close()


@final
class MyPluginTransport(Transport):
    """The channels by name. Ends may be opened in any order and from any thread."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._channels: dict[str, Channel] = {}
        self._received: set[str] = set()
        self._closed = False
        self._lock = threading.Lock()

    def receiver(self, channel: str) -> Receiver:
        """Open the receiving end. Raises `TransportError` the second time, and once the transport has closed."""
        with self._lock:
            if channel in self._received:
                raise TransportError(PART, f"{channel} has a receiver already, and a channel has one")
            receiver = MyPluginReceiver(self._channel(channel))
            self._received.add(channel)
            return receiver

    def sender(self, channel: str) -> Sender:
        """Open a sending end. Raises `TransportError` once the transport has closed."""
        with self._lock:
            return MyPluginSender(self._channel(channel))

    def close(self) -> None:
        """Close every channel."""
        with self._lock:
            self._closed = True
            for channel in self._channels.values():
                channel.close()

    def _channel(self, name: str) -> Channel:
        if self._closed:
            raise TransportError(PART, f"this transport was closed, so {name} cannot be opened")
        return self._channels.setdefault(name, Channel(name, self._bound))
