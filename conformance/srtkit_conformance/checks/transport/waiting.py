"""How long things wait: for a message, for room, and not a moment longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from srtkit.spec.errors import TransportTimeout
from srtkit_conformance.check import Figures, check, expect
from srtkit_conformance.kits.transport.sides import (
    LATE,
    SOON,
    beside,
    expect_same,
    fill,
    in_time,
    open_sides,
    pattern,
    raised,
    receive,
    within,
)
from srtkit_conformance.target import Target


@check(
    "transport.receive_timeout",
    level=1,
    clause="transport/1.0: receive gives None, drain nothing, when `timeout` seconds passed (0: do not wait)",
    explain="Milliseconds are taken for seconds, a short wait is rounded to none or to for ever, or the answer is "
    "an empty message.",
)
@in_time
def receive_timeout(target: Target) -> Figures:
    longest = 0.0
    with open_sides(target) as sides:
        receiver, _ = sides.channel()
        calls: tuple[tuple[str, Callable[[float], object], object], ...] = (
            ("receive", receiver.receive, None),
            ("drain", receiver.drain, []),
        )
        for wait in (0, 0.0004, 0.06):
            for name, call, nothing in calls:
                begin = time.monotonic()
                got = within(LATE, partial(call, wait), f"{name}({wait})")
                took = time.monotonic() - begin
                expect(got == nothing, f"{name} gives something when nothing came", observed=got, limit=nothing)
                expect(took >= 0.9 * wait, f"{name}({wait}) does not wait", observed=f"{took:.4f} s", limit=wait)
                longest = max(longest, took - wait)
    return {"latest_ms": round(1e3 * longest, 2)}


@check(
    "transport.receive_forever",
    level=1,
    clause="transport/1.0: receive with timeout None has no limit",
    explain="None is taken for 0 or for a default: the scheduler's loop would spin.",
)
@in_time
def receive_forever(target: Target) -> None:
    with open_sides(target) as sides:
        sender = sides.sending.sender("requests")
        receiver = sides.receiving.receiver("requests")
        with beside(lambda: receiver.receive(None)) as waiting:
            time.sleep(0.15)
            expect(not waiting.done(), "receive(None) ends without a message")
            sender.send([b"now"], SOON)
            got = within(LATE, lambda: waiting.result(SOON), "receive(None) with a message")
        expect(got == [b"now"], "another message arrived", observed=got)


@check(
    "transport.back_pressure",
    level=1,
    clause="transport/1.0: send blocks while the receiver is behind by more than the bound, then TransportTimeout",
    explain="A queue without limit fills the memory of a process whose reader is stuck. Or a message that could not "
    "be sent in time was sent all the same, or another was lost.",
)
@in_time
def back_pressure(target: Target) -> Figures:
    body = pattern(1000)
    with open_sides(target) as sides:
        receiver, sender = sides.channel()
        sent = fill(sender, body)
        expect(sent > 0, "the channel holds not one message")
        for number in range(sent):
            expect_same(receive(receiver, f"message {number}"), [b"%d" % number, body], f"message {number}")
        expect(receiver.receive(0.05) is None, "a message arrives whose send had ended with TransportTimeout")
        sender.send([b"again"], SOON)
        expect(receive(receiver) == [b"again"], "another message arrived")
    return {"bound": sent}


@check(
    "transport.send_timeout",
    level=1,
    clause="transport/1.0: send raises TransportTimeout after `timeout` seconds",
    explain="send waits for ever, gives up at once, or raises something else.",
)
@in_time
def send_timeout(target: Target) -> Figures:
    longest = 0.0
    with open_sides(target) as sides:
        _, sender = sides.channel()
        within(10 * LATE, partial(fill, sender, b""), "filling the channel")
        for wait in (0, 0.1):
            begin = time.monotonic()
            raised(TransportTimeout, partial(sender.send, [b"x"], wait), "send on a full channel")
            took = time.monotonic() - begin
            expect(took >= 0.9 * wait, f"send gives up before {wait} s", observed=f"{took:.4f} s", limit=wait)
            expect(took <= wait + LATE, f"send waits longer than {wait} s", observed=f"{took:.1f} s", limit=wait)
            longest = max(longest, took - wait)
    return {"latest_ms": round(1e3 * longest, 2)}


@check(
    "transport.resume",
    level=1,
    clause="transport/1.0: send blocks while the receiver is behind",
    explain="A sender that had to wait is not woken when there is room, or its message is lost.",
)
@in_time
def resume(target: Target) -> Figures:
    body = pattern(2000)
    with open_sides(target) as sides:
        receiver, sender = sides.channel()
        sent = fill(sender, body)

        def send_more() -> None:
            for number in range(sent, sent + 20):
                sender.send([b"%d" % number, body], SOON)

        with beside(send_more) as waiting:
            time.sleep(0.1)
            expect(not waiting.done(), "send on a full channel does not wait")
            for number in range(sent + 20):
                expect_same(receive(receiver, f"message {number}"), [b"%d" % number, body], f"message {number}")
        expect(receiver.receive(0) is None, "more messages arrive than were sent")
    return {"bound": sent}
