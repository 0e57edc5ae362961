"""Channels over ZeroMQ: the receiver binds `<folder>/<channel>.sock` (PULL), senders connect to it (PUSH).

Every end has a context of its own, so closing a sender can wait until its messages are out. A receiver
does not notice that its senders have gone: who starts processes watches them.
"""

from __future__ import annotations

import math
import os
import stat
import time
from pathlib import Path
from urllib.parse import quote

import zmq

from srtkit.spec.errors import PeerGone, TransportError, TransportTimeout
from srtkit.spec.transport import Frames, Receiver, Sender, Transport, TransportBuild
from srtkit_plugin_transport_zmq import ZmqOptions
from srtkit_plugin_transport_zmq.liveness import Claim, Watch

PART = "transport:zmq"
LINGER_MS = 1000
LOOK_MS = 50
"""How often a waiting sender looks whether its receiver lives."""
RECONNECT_MS = (10, 200)
"""First and longest pause between attempts to connect: a sender may be there before its receiver."""


class ZmqSender(Sender):
    """Queues on its own side, then in the kernel, then on the receiver's side."""

    def __init__(self, channel: str, folder: Path, high_water: int) -> None:
        address, lock = _files(folder, channel)
        self._channel = channel
        self._receiver = Watch(lock)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set_hwm(high_water)
        self._socket.reconnect_ivl, self._socket.reconnect_ivl_max = RECONNECT_MS
        self._socket.connect(f"ipc://{address}")
        self._gone = False

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        """Queue a copy of the frames."""
        assert frames, "a message has at least one frame"
        deadline = time.monotonic() + timeout
        while True:
            self._refuse_if_useless()
            try:
                self._socket.send_multipart(frames, zmq.NOBLOCK)
                return
            except zmq.Again:
                left_ms = 1000 * (deadline - time.monotonic())
                if left_ms <= 0:
                    cause = f"channel {self._channel} has been full for {timeout:g} s"
                    remedy = "see why its receiver is behind or has not started, or raise transport.options.bound"
                    raise TransportTimeout(PART, cause, remedy) from None
                self._socket.poll(math.ceil(min(left_ms, LOOK_MS)), zmq.POLLOUT)

    def close(self) -> None:
        """Wait up to a second until the receiver's host has what was queued, unless nobody is there to read it."""
        if self._socket.closed:
            return
        self._gone = self._gone or self._receiver.gone()
        self._socket.close(0 if self._gone else LINGER_MS)
        self._context.term()
        self._receiver.close()

    def _refuse_if_useless(self) -> None:
        """Raise when this end is closed or the other one gone."""
        if self._socket.closed:
            raise TransportError(PART, f"this sender of channel {self._channel} is closed")
        self._gone = self._gone or self._receiver.gone()
        if self._gone:
            raise PeerGone(PART, f"the receiver of channel {self._channel} has closed or died")


class ZmqReceiver(Receiver):
    """Holds the channel's lock as long as it is open."""

    def __init__(self, channel: str, folder: Path, high_water: int) -> None:
        """Raises `TransportError` when the channel has a receiver or the socket cannot be made."""
        address, self._lock_file = _files(folder, channel)
        self._channel = channel
        self._high_water = high_water
        try:
            self._claim = Claim(self._lock_file)
        except BlockingIOError:
            raise TransportError(PART, f"channel {channel} has a receiver already") from None
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.set_hwm(high_water)
        try:
            self._socket.bind(f"ipc://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(PART, f"cannot bind {address}: {error}") from error

    def receive(self, timeout: float | None) -> list[bytes] | None:
        """The next message."""
        if self._socket.closed:
            raise TransportError(PART, f"the receiver of channel {self._channel} is closed")
        if timeout is None:
            return self._socket.recv_multipart()
        if timeout > 0 and not self._socket.poll(math.ceil(1000 * timeout)):
            return None
        return self._next()

    def drain(self, timeout: float | None) -> list[list[bytes]]:
        """All that has arrived, up to what the receiving side can hold: a fast sender cannot keep it here."""
        message = self.receive(timeout)
        messages = []
        while message is not None:
            messages.append(message)
            message = self._next() if len(messages) < self._high_water else None
        return messages

    def close(self) -> None:
        """Drop what has not been received; senders see `PeerGone` from now on."""
        if self._socket.closed:
            return
        self._claim.close()
        self._socket.close(0)
        self._context.term()

    def remove(self) -> None:
        """Close, and take away the file that tells later senders so."""
        self.close()
        self._lock_file.unlink(missing_ok=True)

    def _next(self) -> list[bytes] | None:
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None


class ZmqTransport(Transport):
    """All ends that one process has opened in the run's folder."""

    def __init__(self, build: TransportBuild) -> None:
        """Raises `TransportError` for a folder that is missing or that others can enter."""
        assert isinstance(build.options, ZmqOptions)
        if not build.folder.is_dir():
            raise TransportError(PART, f"the folder {build.folder} does not exist")
        mode = stat.S_IMODE(build.folder.stat().st_mode)
        if mode & 0o077:
            raise TransportError(PART, f"others can enter {build.folder} (mode {mode:o})", "give it mode 700")
        self._folder = build.folder
        self._high_water = build.options.bound // 2
        self._senders: list[ZmqSender] = []
        self._receivers: list[ZmqReceiver] = []
        self._closed = False

    def receiver(self, channel: str) -> Receiver:
        """Open the receiving end."""
        self._refuse_if_closed()
        receiver = ZmqReceiver(channel, self._folder, self._high_water)
        self._receivers.append(receiver)
        return receiver

    def sender(self, channel: str) -> Sender:
        """Open a sending end."""
        self._refuse_if_closed()
        sender = ZmqSender(channel, self._folder, self._high_water)
        self._senders.append(sender)
        return sender

    def close(self) -> None:
        """Close all ends; the senders first, so that what they queued for receivers elsewhere gets out."""
        self._closed = True
        for sender in self._senders:
            sender.close()
        for receiver in self._receivers:
            receiver.remove()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise TransportError(PART, "this transport is closed")


def _files(folder: Path, channel: str) -> tuple[Path, Path]:
    """Socket and lock file of a channel, whatever its name. Raises `TransportError` if the path is too long."""
    name = quote(channel, safe="")
    address = folder / f"{name}.sock"
    length = len(os.fsencode(address))
    if length > zmq.IPC_PATH_MAX_LEN:
        cause = f"the socket path {address} has {length} bytes, the system allows {zmq.IPC_PATH_MAX_LEN}"
        raise TransportError(PART, cause, "use a shorter folder for temporary files, e.g. TMPDIR=/tmp")
    return address, folder / f"{name}.lock"
