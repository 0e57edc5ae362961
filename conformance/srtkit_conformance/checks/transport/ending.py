"""How ends close: nothing queued is lost, the other side is told, nothing is left behind."""

from __future__ import annotations

import threading
import time
from functools import partial

from srtkit.spec.errors import PeerGone, TransportError
from srtkit_conformance.check import Failed, Figures, check, expect
from srtkit_conformance.kits.transport.sides import (
    CHANNEL,
    LATE,
    SOON,
    beside,
    declared,
    expect_same,
    in_time,
    open_sides,
    pattern,
    raised,
    receive,
    within,
)
from srtkit_conformance.target import Target

AT_MOST_A_SECOND = 1.6
"""What the contract's second may take on a busy machine."""
TRIES = 3
"""Until one is in time: a machine that stands still for a second now and then is no fault of the transport."""


@check(
    "transport.closed_receiver",
    level=1,
    clause="transport/1.0: send raises PeerGone when the receiver has closed",
    explain="Senders go on filling a queue that nobody reads, or get an error that does not say why.",
)
@in_time
def closed_receiver(target: Target) -> None:
    with open_sides(target) as sides:
        receiver, sender = sides.channel()
        sender.send([b"one"], SOON)
        expect(receive(receiver) == [b"one"], "another message arrived")
        receiver.close()
        for what in ("the first send to a closed receiver", "the second send to a closed receiver"):
            raised(PeerGone, lambda: sender.send([b"two"], SOON), what)
        late = sides.sending.sender(CHANNEL)
        raised(PeerGone, lambda: late.send([b"three"], SOON), "send of an end opened after the receiver closed")


@check(
    "transport.closed_receiver_waiting",
    level=1,
    clause="transport/1.0: send raises PeerGone when the receiver has closed, also while it blocks",
    explain="A sender that waits for room learns of the end only when its timeout has passed.",
)
@in_time
def closed_receiver_waiting(target: Target) -> Figures:
    with open_sides(target) as sides:
        receiver, sender = sides.channel()

        def send_until_it_fails() -> float:
            try:
                while True:
                    sender.send([b"x" * 1000], 30)
            except PeerGone:
                return time.monotonic()

        with beside(send_until_it_fails) as sending:
            time.sleep(0.2)
            expect(not sending.done(), "a sender is not stopped by a full channel")
            receiver.close()
            closed = time.monotonic()
            noticed = within(LATE, lambda: sending.result(SOON), "a blocked send to a closed receiver")
    return {"noticed_ms": round(1e3 * (noticed - closed), 2)}


@check(
    "transport.close_delivers",
    level=1,
    clause="transport/1.0: close of a sender delivers what is queued, at most a second",
    explain="Closing throws away what the receiver has not read yet: the last tokens of a reply.",
)
@in_time
def close_delivers(target: Target) -> Figures:
    body = pattern(300_000)  # more of them than a kernel buffers
    messages = [[b"%d" % number, body] for number in range(20)] + [[b"last"]]
    with open_sides(target) as sides:
        receiver = sides.receiving.receiver(CHANNEL)

        def send_and_close() -> None:
            sender = sides.sending.sender(CHANNEL)
            for message in messages:
                sender.send(message, SOON)
            sender.close()

        with beside(send_and_close) as sending:
            time.sleep(0.05)
            for number, message in enumerate(messages):
                expect_same(receive(receiver, f"message {number} of a closed sender"), message, f"message {number}")
            within(SOON, lambda: sending.result(SOON), "closing a sender")
    return {"bytes": len(messages) * len(body)}


@check(
    "transport.close_in_time",
    level=1,
    clause="transport/1.0: close of a sender delivers what is queued, at most a second",
    explain="Closing waits for a receiver that never comes: a process that is told to stop does not.",
)
@in_time
def close_in_time(target: Target) -> Figures:
    for _ in range(TRIES):
        with open_sides(target) as sides:
            sender = sides.sending.sender(CHANNEL)
            sender.send([b"x"], SOON)
            begin = time.monotonic()
            within(SOON, sender.close, "closing a sender without receiver")
            took = time.monotonic() - begin
        if took <= AT_MOST_A_SECOND:
            return {"seconds": round(took, 2)}
    raise Failed("closing takes longer than a second", observed=f"{took:.1f} s", limit="1 s")


@check(
    "transport.closed",
    level=1,
    clause="transport/1.0: close is idempotent, of ends and of the transport",
    explain="The second close raises, or a closed end is used in silence.",
)
@in_time
def closed(target: Target) -> None:
    with open_sides(target) as sides:
        receiver, sender = sides.channel()
        for end in (sender, receiver, sender, receiver):
            end.close()
        raised(TransportError, lambda: receiver.receive(0), "receive of a closed receiver")
        raised(TransportError, lambda: receiver.drain(0), "drain of a closed receiver")
        raised(TransportError, lambda: sender.send([b"x"], 0), "send of a closed sender")
        for transport in (sides.sending, sides.receiving, sides.sending, sides.receiving):
            transport.close()
        raised(TransportError, lambda: sides.receiving.receiver("a"), "opening a receiver on a closed transport")
        raised(TransportError, lambda: sides.sending.sender("a"), "opening a sender on a closed transport")


@check(
    "transport.leaves_nothing",
    level=1,
    clause="transport/1.0: close of a transport closes every end opened here and removes what it created",
    explain="A socket, lock or thread outlives the run, and the next one trips over it or the machine runs out.",
)
@in_time
def leaves_nothing(target: Target) -> Figures:
    threads = threading.active_count()
    with open_sides(target) as sides:
        for name in ("a", "b"):
            receiver, sender = sides.channel(name)
            sender.send([b"x"], SOON)
            expect(receive(receiver) == [b"x"], "another message arrived")
        files = len(list(sides.folder.iterdir()))
        sides.close()
        raised(TransportError, lambda: sender.send([b"x"], 0), "send on a closed transport")
        raised(TransportError, lambda: receiver.receive(0), "receive on a closed transport")
        left = sorted(file.name for file in sides.folder.iterdir())
    expect(not left, "files are left in the run's folder", observed=left)
    more = threading.active_count() - threads
    expect(more <= 0, "threads are left", observed=more)
    return {"files_while_open": files}


@check(
    "transport.fan_out",
    level=1,
    clause="transport/1.0: one receiver and any number of senders, or (fan_out) several receivers, all the same bytes",
    explain="Without fan_out a second receiver must be refused: each of two would get half of the messages. With it, "
    "every receiver gets every message.",
)
@in_time
def fan_out(target: Target) -> Figures:
    with open_sides(target) as sides:
        first = sides.receiving.receiver(CHANNEL)
        if not declared(target).fan_out:
            raised(TransportError, lambda: sides.receiving.receiver(CHANNEL), "opening a second receiver here")
            raised(TransportError, lambda: sides.sending.receiver(CHANNEL), "opening a second receiver there")
            return {"receivers": 1}
        receivers = [first, sides.receiving.receiver(CHANNEL), sides.receiving.receiver(CHANNEL)]
        messages = [[b"%d" % number, pattern(number * 100)] for number in range(50)]
        sender = sides.sending.sender(CHANNEL)
        for message in messages:
            with beside(partial(sender.send, message, SOON)):
                for receiver in receivers:
                    expect_same(receive(receiver), message, "a message to several receivers")
        return {"receivers": len(receivers)}
