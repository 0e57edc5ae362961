"""Channels over ZeroMQ: the receiver binds `<folder>/<channel>.sock` (ROUTER), senders connect to it (DEALER).

The receiver grants every sender a credit of `bound` messages and renews it as it reads, so a channel is bounded
without ZeroMQ's high-water marks. With those (PUSH and PULL), what a sender had sent to a receiver that was
behind would be lost when the sender closes. A receiver does not notice that its senders have gone.
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
    """One DEALER socket in a context of its own, so that closing can wait until its messages are out."""

    def __init__(self, channel: str, folder: Path, bound: int) -> None:
        """Raises `TransportError` when the socket's path is too long."""
        address, lock = _files(folder, channel)
        self._channel = channel
        self._bound = bound
        self._ahead = 0  # messages sent and not yet credited as read
        self._receiver = Watch(lock)
        self._gone = False
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.reconnect_ivl, self._socket.reconnect_ivl_max = RECONNECT_MS
        self._socket.connect(f"ipc://{address}")

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        """Queue a copy of the frames."""
        assert frames, "a message has at least one frame"
        self._refuse_if_useless()
        if self._ahead >= self._bound:
            self._await_credit(timeout)
        self._socket.send_multipart(frames, zmq.NOBLOCK)
        self._ahead += 1

    def close(self) -> None:
        """Wait up to a second until the receiver's process has what was sent, unless it is gone."""
        if self._socket.closed:
            return
        self._gone = self._gone or self._receiver.gone()
        self._socket.close(0 if self._gone else LINGER_MS)
        self._context.term()
        self._receiver.close()

    def _await_credit(self, timeout: float) -> None:
        """Wait until the receiver has read on. Raises `TransportTimeout` and `PeerGone`."""
        deadline = time.monotonic() + timeout
        while not self._take_credit():
            left_ms = 1000 * (deadline - time.monotonic())
            if left_ms <= 0:
                cause = f"channel {self._channel} has been full ({self._bound} messages) for {timeout:g} s"
                remedy = "see why its receiver is behind or has not started, or raise transport.options.bound"
                raise TransportTimeout(PART, cause, remedy)
            self._socket.poll(math.ceil(min(left_ms, LOOK_MS)))
            self._refuse_if_useless()

    def _take_credit(self) -> bool:
        """Read the credits that have come; true if there is room for a message."""
        try:
            while True:
                self._ahead -= int(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return self._ahead < self._bound

    def _refuse_if_useless(self) -> None:
        """Raise when this end is closed or the other one gone."""
        if self._socket.closed:
            raise TransportError(PART, f"this sender of channel {self._channel} is closed")
        self._gone = self._gone or self._receiver.gone()
        if self._gone:
            raise PeerGone(PART, f"the receiver of channel {self._channel} has closed or died")


class ZmqReceiver(Receiver):
    """One ROUTER socket; holds the channel's lock as long as it is open."""

    def __init__(self, channel: str, folder: Path, bound: int) -> None:
        """Raises `TransportError` when the channel has a receiver or the socket cannot be made."""
        self._address, self._lock_file = _files(folder, channel)
        self._channel = channel
        self._bound = bound
        self._batch = max(1, bound // 2)  # messages read before their credit is sent
        self._read: dict[bytes, int] = {}  # by sender: messages read and not yet credited
        try:
            self._claim = Claim(self._lock_file)
        except BlockingIOError:
            raise TransportError(PART, f"channel {channel} has a receiver already") from None
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set_hwm(0)
        try:
            self._socket.bind(f"ipc://{self._address}")
        except zmq.ZMQError as error:
            self._end()
            raise TransportError(PART, f"cannot bind {self._address}: {error}") from error

    def receive(self, timeout: float | None) -> list[bytes] | None:
        """The next message."""
        if self._socket.closed:
            raise TransportError(PART, f"the receiver of channel {self._channel} is closed")
        if timeout is None:
            return self._next(0)
        if timeout > 0 and not self._socket.poll(math.ceil(1000 * timeout)):
            return None
        return self._next(zmq.NOBLOCK)

    def drain(self, timeout: float | None) -> list[list[bytes]]:
        """All that has arrived, at most `bound` messages: a fast sender cannot keep it here."""
        message = self.receive(timeout)
        messages = []
        while message is not None:
            messages.append(message)
            message = self._next(zmq.NOBLOCK) if len(messages) < self._bound else None
        return messages

    def close(self) -> None:
        """Drop what has not been received; senders see `PeerGone` from now on."""
        if not self._socket.closed:
            self._end()
            self._address.unlink(missing_ok=True)

    def remove(self) -> None:
        """Close, and take away the file that tells later senders so."""
        self.close()
        self._lock_file.unlink(missing_ok=True)

    def _end(self) -> None:
        self._socket.close(0)
        self._context.term()
        self._claim.close()

    def _next(self, flags: int) -> list[bytes] | None:
        try:
            sender, *frames = self._socket.recv_multipart(flags)
        except zmq.Again:
            return None
        read = self._read.get(sender, 0) + 1
        if read == self._batch:
            self._socket.send_multipart([sender, b"%d" % read], zmq.NOBLOCK)  # dropped if the sender has gone
            read = 0
        self._read[sender] = read
        return frames


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
        self._bound = build.options.bound
        self._senders: list[ZmqSender] = []
        self._receivers: list[ZmqReceiver] = []
        self._closed = False

    def receiver(self, channel: str) -> Receiver:
        """Open the receiving end."""
        self._refuse_if_closed()
        receiver = ZmqReceiver(channel, self._folder, self._bound)
        self._receivers.append(receiver)
        return receiver

    def sender(self, channel: str) -> Sender:
        """Open a sending end."""
        self._refuse_if_closed()
        sender = ZmqSender(channel, self._folder, self._bound)
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
