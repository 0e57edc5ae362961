"""What arrives: every byte, whole messages, in order, once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

from srtkit_conformance.check import Figures, check, expect
from srtkit_conformance.kits.transport.sides import (
    CHANNEL,
    LATE,
    SOON,
    Sides,
    beside,
    exchange,
    expect_same,
    fill,
    in_time,
    open_sides,
    pattern,
    receive,
)
from srtkit_conformance.target import Target

SIZES = (0, 1, 4095, 4096, 4097, 65_535, 65_536, 1 << 20, 16 << 20)


@check(
    "transport.bytes",
    level=1,
    clause="transport/1.0: a message is one or more byte frames, delivered whole",
    explain="A frame is cut at a page, a buffer or a 16-bit length, an empty one is lost, or a large one.",
)
@in_time
def every_byte(target: Target) -> Figures:
    with open_sides(target) as sides:
        exchange(sides, [[pattern(size, salt)] for salt, size in enumerate(SIZES)])
    return {"largest": max(SIZES)}


@check(
    "transport.large",
    level=2,
    clause="transport/1.0: a message is one or more byte frames, delivered whole",
    explain="A limit below 64 MiB: a message with images or prompt embeddings is as large.",
)
@in_time
def large(target: Target) -> Figures:
    with open_sides(target) as sides:
        exchange(sides, [[pattern(64 << 20), b"after"], [b"next"]])
    return {"largest": 64 << 20}


@check(
    "transport.frames",
    level=1,
    clause="transport/1.0: a message is one or more byte frames, delivered whole",
    explain="Frames are joined, empty ones are dropped, or they arrive as something else than bytes.",
)
@in_time
def frames(target: Target) -> Figures:
    messages = [[b""], [b"", b""], [b"a", b"", b"bc"], [b"x", b""], [pattern(5000, i) for i in range(40)]]
    with open_sides(target) as sides:
        receiver, sender = sides.channel()
        for sent in messages:
            with beside(partial(sender.send, sent, SOON)):
                got = receive(receiver)
            expect_same(got, sent, f"a message of {len(sent)} frames")
            kinds = {type(frame).__name__ for frame in got}
            expect(kinds == {"bytes"}, "frames arrive as something else than bytes", observed=kinds)
    return {"most_frames": 40}


@check(
    "transport.reuse",
    level=1,
    clause="transport/1.0: the frames may be reused when send returns",
    explain="The sender keeps a view of the caller's buffer, and sends what stands in it later.",
)
@in_time
def reuse(target: Target) -> None:
    with open_sides(target) as sides:
        receiver, sender = sides.channel()
        for size in (10, 70_000, 1 << 20):
            buffer = bytearray(size)
            sender.send([b"head", memoryview(buffer)], SOON)
            buffer[:] = b"x" * size
            expect(receive(receiver) == [b"head", bytes(size)], "a frame changed after it was sent", observed=size)


@check(
    "transport.order",
    level=1,
    clause="transport/1.0: delivered in order per sender, at most once",
    explain="Large messages overtake small ones or the reverse, a retry delivers twice, or senders share a counter.",
)
@in_time
def order(target: Target) -> Figures:
    names, count = (b"a", b"b", b"c"), 1500
    sizes = target.rng("order").choice([0, 10, 5000, 100_000], size=count, p=[0.4, 0.5, 0.09, 0.01])
    bodies = {int(size): bytes(int(size)) for size in sizes}

    def send_all(sides: Sides, name: bytes) -> Callable[[], None]:
        def work() -> None:
            sender = sides.sending.sender(CHANNEL)
            for number, size in enumerate(sizes):
                sender.send([name, b"%d" % number, bodies[int(size)]], SOON)

        return work

    got: dict[bytes, list[int]] = defaultdict(list)
    with open_sides(target) as sides:
        receiver = sides.receiving.receiver(CHANNEL)
        a, b, c = (send_all(sides, name) for name in names)
        with beside(a), beside(b), beside(c):
            for _ in range(len(names) * count):
                name, number, body = receive(receiver)
                got[name].append(int(number))
                expect(len(body) == sizes[int(number)], "a body belongs to another message", observed=len(body))
        expect(receiver.receive(0.05) is None, "a message arrives twice")
    for name in names:
        numbers = got[name]
        wrong = next((at for at, number in enumerate(numbers) if number != at), None)
        expect(wrong is None, "messages of one sender are out of order", observed=numbers[wrong or 0], limit=wrong)
    return {"messages": len(names) * count}


@check(
    "transport.drain",
    level=1,
    clause="transport/1.0: drain gives all messages that have arrived",
    explain="drain drops what it does not return, or reads past what receive has already taken.",
)
@in_time
def drain(target: Target) -> Figures:
    sent = [[b"%d" % number, b""] for number in range(300)]
    got: list[list[bytes]] = []
    with open_sides(target) as sides:
        receiver = sides.receiving.receiver(CHANNEL)

        def send_all() -> None:
            sender = sides.sending.sender(CHANNEL)
            for message in sent:
                sender.send(message, SOON)

        calls = 0
        with beside(send_all):
            while len(got) < len(sent):
                part = [receive(receiver)] if calls % 3 == 2 else receiver.drain(LATE)
                expect(part != [], "drain returns nothing although messages come", observed=len(got), limit=len(sent))
                got += part
                calls += 1
        expect(got == sent, "drain loses or reorders messages", observed=len(got), limit=len(sent))
        expect(receiver.drain(0) == [], "drain gives a message twice")
    return {"calls": calls}


@check(
    "transport.channels",
    level=1,
    clause="transport/1.0: a channel has one name and one receiver",
    explain="Names are cut or cleaned so that two become one, lead out of the folder, or a full channel stops others.",
)
@in_time
def channels(target: Target) -> Figures:
    names = ("a", "b", "ab", "a/b", "A", "a.sock", "deltas:0", "deltas:1", "..", "ü 1")
    with open_sides(target) as sides:
        ends = [sides.channel(name) for name in names]
        for name, (_, sender) in zip(names, ends, strict=True):
            sender.send([name.encode()], SOON)
        for name, (receiver, _) in zip(names, ends, strict=True):
            got = receive(receiver, f"the message on channel {name!r}")
            expect(got == [name.encode()], f"channel {name!r} carries the message of another", observed=got)
            expect(receiver.receive(0) is None, f"channel {name!r} carries the message of another")
        bound = fill(ends[0][1], b"")
        with beside(lambda: ends[1][1].send([b"free"], SOON)):
            got = receive(ends[1][0], "a message beside a full channel")
        expect(got == [b"free"], "a full channel disturbs another", observed=got)
    return {"channels": len(names), "bound": bound}


@check(
    "transport.sender_first",
    level=1,
    clause="transport/1.0: the receiving end may be opened before or after the senders",
    explain="What was sent before the receiver came is dropped, or opening a sender fails without a receiver.",
)
@in_time
def sender_first(target: Target) -> None:
    with open_sides(target) as sides:
        sender = sides.sending.sender(CHANNEL)
        sender.send([b"early"], SOON)
        receiver = sides.receiving.receiver(CHANNEL)
        expect(receive(receiver, "a message from before the receiver") == [b"early"], "another message arrived")
