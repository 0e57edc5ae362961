"""Processes of one run: what reaches them, and what their death does to the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing

from srtkit.spec.capabilities import No
from srtkit.spec.errors import PeerGone
from srtkit.spec.transport import Sender, Transport
from srtkit_conformance.check import Body, Check, Failed, Informational, Outcome, check, expect
from srtkit_conformance.kits.transport.children import Say, child
from srtkit_conformance.kits.transport.sides import (
    CHANNEL,
    LATE,
    SOON,
    beside,
    build,
    declared,
    expect_same,
    pattern,
    receive,
    run_folder,
    within,
)
from srtkit_conformance.target import Target

SIZES_AT_THE_END = (10, 1000, 100_000, 1 << 20, 1 << 20, 8 << 20)
IN_TIME = 1.0
"""Seconds in which a sender must notice that its receiver has died."""


def between_processes(id_: str, *, clause: str, explain: str) -> Callable[[Body], Check]:
    """A check for transports that connect processes. Of others core opens all ends in one process."""

    def made(body: Body) -> Check:
        def asked(target: Target) -> Outcome:
            can = declared(target).processes
            return Informational(f"declared a no: {can.reason}") if isinstance(can, No) else body(target)

        return check(id_, level=1, clause=clause, explain=explain, isolated=True, forks=True)(asked)

    return made


def echo(transport: Transport, say: Say) -> None:
    """Sends back what comes, every frame from its end to its beginning, until the message "end"."""
    receiver, sender = transport.receiver(CHANNEL), transport.sender("replies")
    say("up")
    while (message := receive(receiver)) != [b"end"]:
        sender.send([frame[::-1] for frame in message], SOON)
    transport.close()


def hold_receiver(transport: Transport, say: Say) -> None:
    """Opens a receiver, reads one message and then nothing."""
    receiver = transport.receiver(CHANNEL)
    say("up")
    receiver.receive(SOON)
    say("read")
    time.sleep(60)


def send_and_end(transport: Transport, say: Say) -> None:
    """Sends, closes and ends at once."""
    sender = transport.sender(CHANNEL)
    for size in SIZES_AT_THE_END:
        sender.send([pattern(size)], SOON)
    sender.close()
    os._exit(0)


def send_for_ever(transport: Transport, say: Say) -> None:
    """Sends large messages until it is killed."""
    sender = transport.sender(CHANNEL)
    while True:
        sender.send([b"mine", bytes(3_000_000), b"end"], 60)


def seconds_until_gone(sender: Sender) -> float:
    """How long a sender needs to notice that its receiver has gone; sends meanwhile may be lost."""
    begin = time.monotonic()
    while time.monotonic() < begin + LATE:
        try:
            sender.send([b"x"], 1)
        except PeerGone:
            return time.monotonic() - begin
        time.sleep(0.01)
    raise Failed("send never raises PeerGone although the receiver's process has ended", observed=f"> {LATE} s")


@between_processes(
    "transport.processes",
    clause="transport/1.0: channels between processes; every process of the run builds one from the same address",
    explain="Declared, but the ends do not meet; or what goes between processes is cut, mixed up or late.",
)
def processes(target: Target) -> Outcome:
    folder = run_folder(target)
    with child(target, folder, echo) as other, closing(build(target, folder)) as transport:
        receiver, sender = transport.receiver("replies"), transport.sender(CHANNEL)
        expect(other.said() == "up", "a process of the run did not come up")
        for size in (0, 1, 4095, 4096, 1 << 20, 16 << 20):
            message = [pattern(size), b"", pattern(100, size)]
            sender.send(message, SOON)
            back = [frame[::-1] for frame in message]
            expect_same(receive(receiver, "a reply"), back, f"a reply to a message of {size} bytes")
        begin = time.monotonic()
        for number in range(1000, 1200):
            sender.send([b"%d" % number], SOON)
            expect(receive(receiver, "a reply") == [(b"%d" % number)[::-1]], "replies are out of order")
        took = time.monotonic() - begin
        sender.send([b"end"], SOON)
        expect(other.ended() == 0, "a process of the run did not end well", observed=other.ended())
    left = sorted(file.name for file in folder.iterdir())
    expect(not left, "files are left in the run's folder", observed=left)
    return {"round_trip_us": round(1e6 * took / 200)}


@between_processes(
    "transport.killed_receiver",
    clause="transport/1.0: send raises PeerGone when the receiver has died",
    explain="The end of a process is only noticed when it says good-bye. SIGKILL and the out-of-memory killer do not.",
)
def killed_receiver(target: Target) -> Outcome:
    folder = run_folder(target)
    with child(target, folder, hold_receiver) as other, closing(build(target, folder)) as transport:
        expect(other.said() == "up", "a process of the run did not come up")
        sender = transport.sender(CHANNEL)
        sender.send([b"hello"], SOON)
        expect(other.said() == "read", "the message did not reach the process")
        other.kill()
        seconds = seconds_until_gone(sender)
        expect(seconds <= IN_TIME, "a dead receiver is noticed late", observed=f"{seconds:.2f} s", limit=IN_TIME)
        begin = time.monotonic()
        within(LATE, transport.close, "closing after the receiver died")
        took = time.monotonic() - begin
    return {"noticed_ms": round(1e3 * seconds, 1), "closing_ms": round(1e3 * took, 1)}


@between_processes(
    "transport.killed_receiver_waiting",
    clause="transport/1.0: send raises PeerGone when the receiver has died, also while it blocks",
    explain="A sender that waits for room of a dead process learns of it only when its timeout has passed.",
)
def killed_receiver_waiting(target: Target) -> Outcome:
    folder = run_folder(target)
    with child(target, folder, hold_receiver) as other, closing(build(target, folder)) as transport:
        expect(other.said() == "up", "a process of the run did not come up")

        def send_until_it_fails() -> float:
            sender = transport.sender(CHANNEL)
            try:
                while True:
                    sender.send([b"x" * 1000], 30)
            except PeerGone:
                return time.monotonic()

        with beside(send_until_it_fails) as sending:
            expect(other.said() == "read", "the message did not reach the process")
            time.sleep(0.2)
            expect(not sending.done(), "a sender is not stopped by a full channel")
            other.kill()
            killed = time.monotonic()
            noticed = within(LATE, lambda: sending.result(SOON), "a blocked send to a dead process")
    return {"noticed_ms": round(1e3 * (noticed - killed), 1)}


@between_processes(
    "transport.ended_sender",
    clause="transport/1.0: close of a sender delivers what is queued",
    explain="What a process sent right before its end is lost: close returns before the bytes have left it.",
)
def ended_sender(target: Target) -> Outcome:
    folder = run_folder(target)
    with child(target, folder, send_and_end) as other, closing(build(target, folder)) as transport:
        receiver = transport.receiver(CHANNEL)
        for number, size in enumerate(SIZES_AT_THE_END):
            message = receive(receiver, f"message {number} of a process that has ended")
            expect_same(message, [pattern(size)], f"message {number}")
        expect(other.ended() == 0, "a process of the run did not end well", observed=other.ended())
    return {"messages": len(SIZES_AT_THE_END)}


@between_processes(
    "transport.killed_sender",
    clause="transport/1.0: a message is delivered whole",
    explain="Half a message of a killed process is delivered, blocks the channel, or ends it for the other senders.",
)
def killed_sender(target: Target) -> Outcome:
    whole, got = [b"mine", bytes(3_000_000), b"end"], 0
    folder = run_folder(target)
    with child(target, folder, send_for_ever) as other, closing(build(target, folder)) as transport:
        receiver = transport.receiver(CHANNEL)
        expect_same(receive(receiver), whole, "a message")
        other.kill()
        while (message := receiver.receive(0.3)) is not None:
            expect_same(message, whole, "a message of a killed process")
            got += 1
        sender = transport.sender(CHANNEL)
        sender.send([b"other"], SOON)
        expect(receive(receiver, "another sender's message") == [b"other"], "another message arrived")
    return {"messages_after_the_kill": got}
