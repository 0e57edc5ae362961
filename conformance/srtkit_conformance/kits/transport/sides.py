"""Both sides of a run in this process, and work beside a check that must end in time. Knows the contract only."""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from srtkit.spec.errors import TransportError, TransportTimeout
from srtkit.spec.transport import Receiver, Sender, Transport, TransportBuild, TransportCapabilities
from srtkit_conformance.check import Failed, Outcome, expect
from srtkit_conformance.target import Target

T = TypeVar("T")

SOON = 5.0
"""Seconds that an exchange may take on a busy machine."""
LATE = 2.0
"""Seconds after which something that should have taken a fraction of one counts as never."""
HANG = 20.0
FULL = 0.05
"""Seconds that a send waits before a channel counts as full."""
MOST = 100_000
"""Messages without a reader that no sane bound lets through."""

CHANNEL = "requests"


@dataclass
class Sides:
    """Two builds of one run: where receivers and where senders are opened. The same if all must be in one process."""

    folder: Path
    receiving: Transport
    sending: Transport

    def channel(self, name: str = CHANNEL) -> tuple[Receiver, Sender]:
        """Both ends of a channel."""
        return self.receiving.receiver(name), self.sending.sender(name)

    def close(self) -> None:
        """Close both."""
        self.sending.close()
        self.receiving.close()


def declared(target: Target) -> TransportCapabilities:
    """What the transport says of itself under the target's options."""
    capabilities: TransportCapabilities = target.descriptor.capabilities(target.options)
    return capabilities


def run_folder(target: Target) -> Path:
    """A new private folder for one run, with a short path."""
    return Path(tempfile.mkdtemp(prefix="r", dir=target.folder))


def build(target: Target, folder: Path) -> Transport:
    """The transport of one process of the run."""
    transport: Transport = target.descriptor.build(TransportBuild(folder, target.options))
    return transport


@contextmanager
def open_sides(target: Target) -> Iterator[Sides]:
    """Both sides of a new run, closed at the end."""
    folder = run_folder(target)
    receiving = build(target, folder)
    sides = Sides(folder, receiving, build(target, folder) if declared(target).processes else receiving)
    try:
        yield sides
    finally:
        sides.close()


def in_time(body: Callable[[Target], Outcome]) -> Callable[[Target], Outcome]:
    """A check's body that counts as failed when it hangs."""

    @functools.wraps(body)
    def timed(target: Target) -> Outcome:
        return within(HANG, lambda: body(target), "the check")

    return timed


def within(seconds: float, work: Callable[[], T], what: str) -> T:
    """Do something in another thread. Raises what it raises, or `Failed` if it has not ended in time."""
    future = _started(work)
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():
            raise
        raise Failed(f"{what} did not end", observed=f"> {seconds:g} s") from None


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Future[T]]:
    """Do something beside the block; it must have ended soon after it, and what it raises fails the check."""
    future = _started(work)
    yield future
    within(SOON, future.exception, "what a thread did beside the check")
    future.result(0)


def _started(work: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # it belongs to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # daemon: a plugin that hangs must not hang the suite
    return future


def raised(kind: type[TransportError], work: Callable[[], object], what: str) -> TransportError:
    """The error of that kind that `work` raises. Raises `Failed` if it raises none, or another."""
    try:
        within(SOON, work, what)
    except kind as error:
        return error
    except TransportError as error:
        raise Failed(f"{what} raised another error", observed=repr(error), limit=kind.__name__) from error
    raise Failed(f"{what} raised nothing", limit=kind.__name__)


def fill(sender: Sender, body: bytes) -> int:
    """Send numbered messages until the channel is full; returns how many went."""
    for number in range(MOST):
        try:
            sender.send([b"%d" % number, body], FULL)
        except TransportTimeout:
            return number
    raise Failed("a sender is never stopped, however far its receiver is behind", observed=MOST)


def receive(receiver: Receiver, what: str = "a message") -> list[bytes]:
    """The next message, which must be on its way."""
    message = receiver.receive(LATE)
    if message is None:
        raise Failed(f"{what} did not arrive", observed=f"nothing in {LATE:g} s")
    return message


def exchange(sides: Sides, messages: list[list[bytes]]) -> None:
    """Send messages on a channel and expect exactly them, in order."""
    receiver = sides.receiving.receiver(CHANNEL)

    def send_all() -> None:
        sender = sides.sending.sender(CHANNEL)
        for message in messages:
            sender.send(message, SOON)

    with beside(send_all):
        for number, message in enumerate(messages):
            expect_same(receive(receiver, f"message {number}"), message, f"message {number}")
    expect(receiver.receive(0) is None, "more messages arrive than were sent")


def expect_same(got: list[bytes], sent: list[bytes], what: str) -> None:
    """Raise `Failed` unless both messages are the same, byte for byte."""
    if got == sent:
        return
    sizes, expected = [len(frame) for frame in got], [len(frame) for frame in sent]
    expect(len(got) == len(sent), f"{what} has another number of frames", observed=sizes[:9], limit=expected[:9])
    expect(sizes == expected, f"a frame of {what} has another size", observed=sizes[:9], limit=expected[:9])
    raise Failed(f"{what} holds other bytes")


def pattern(size: int, salt: int = 0) -> bytes:
    """Bytes that differ at every offset a fault could shift them by."""
    period = bytes((i * 31 + (i >> 8) + salt) & 255 for i in range(min(size, 4099)))
    return (period * (size // 4099 + 1))[:size]
