"""Streams and events: what they order, and what the host knows after waiting.

Where launching is synchronous nothing can go wrong here, and the checks show only that the calls exist.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext

import torch

from srtkit.spec.platform import Event
from srtkit_conformance.check import Figures, check, expect
from srtkit_conformance.kits.platform.rig import CHAIN, SECONDS, opened, values, work
from srtkit_conformance.target import Target

TIMES = 10
N = 4096
BUFFERS, STREAMS, TURNS, MODULUS = 4, 3, 80, 97


@check(
    "platform.events",
    level=1,
    clause="platform/1.0: Event: record marks the current stream, wait makes the current stream wait for the mark",
    explain="record or wait uses the default stream in place of the current one, or wait does nothing.",
)
def events(target: Target) -> None:
    with opened(target) as rig:
        x, y = rig.zeros(N), rig.zeros(N)
        rig.wait()
        side = rig.platform.new_stream()
        written, read = rig.platform.new_event(), rig.platform.new_event()
        for _ in range(TIMES):
            work(x)
            written.record()
            with side:
                written.wait()
                y.add_(x)
                read.record()
            read.wait()
            x.zero_()
        seen = values(y)
        expect(seen == [TIMES * CHAIN], "one stream did not wait for the other", observed=seen, limit=TIMES * CHAIN)


@check(
    "platform.current_stream",
    level=1,
    clause="platform/1.0: Stream: entering makes it the current stream of this thread, leaving restores the one before",
    explain="The stream stays current after the block, after a nested block, or after an error in it.",
)
def current_stream(target: Target) -> None:
    with opened(target) as rig:
        main, outer, inner = rig.platform.current_stream(), rig.platform.new_stream(), rig.platform.new_stream()
        host = rig.platform.host_buffer((N,), torch.float32)
        x = rig.zeros(N)
        rig.wait()
        with outer:
            try:
                with inner:
                    raise KeyError("in the block")
            except KeyError:
                pass
            work(x)
            outer.synchronize()
            host.copy_(x, non_blocking=True)
            outer.synchronize()
            expect(_all(host, CHAIN), "work after a nested block is not on the outer stream", observed=host[:4])
        work(x)
        host.copy_(x, non_blocking=True)
        main.synchronize()
        expect(_all(host, 2 * CHAIN), "work after the block is not on the stream before", observed=host[:4])


@check(
    "platform.event_synchronize",
    level=1,
    clause="platform/1.0: Event.synchronize waits on the host; query says whether the mark has been passed",
    explain="The host reads the tokens of a step right after this wait. It returns before the copy is done, or query "
    "says yes too early.",
)
def event_synchronize(target: Target) -> None:
    with opened(target) as rig:
        x = rig.zeros(N)
        hosts = [rig.platform.host_buffer((N,), torch.float32) for _ in range(TIMES)]
        events = [rig.platform.new_event() for _ in range(TIMES)]
        for host, event in zip(hosts, events, strict=True):
            work(x)
            host.copy_(x, non_blocking=True)
            event.record()
        for number, (host, event) in enumerate(zip(hosts, events, strict=True)):
            event.synchronize(SECONDS)
            expect(_all(host, CHAIN * (number + 1)), "the host saw a copy before it was done", observed=host[:4])
            expect(event.query(), "query says no after synchronize")


@check(
    "platform.event_query",
    level=1,
    clause="platform/1.0: Event.query: whether the mark has been passed",
    explain="query says yes while the work before the mark still runs, or it never says yes unless somebody waits.",
)
def event_query(target: Target) -> Figures:
    with opened(target) as rig:
        x = rig.zeros(N)
        host = rig.platform.host_buffer((N,), torch.float32)
        event = rig.platform.new_event()
        work(x)
        host.copy_(x, non_blocking=True)
        event.record()
        asked, until = 1, time.monotonic() + SECONDS
        while not event.query():
            expect(time.monotonic() < until, "query never says yes", limit=f"{SECONDS:g} s")
            asked += 1
        expect(_all(host, CHAIN), "query said yes before the copy was done", observed=host[:4])
        return {"asked": asked}


@check(
    "platform.stream_synchronize",
    level=1,
    clause="platform/1.0: Stream.synchronize waits on the host for all of its work",
    explain="It waits for the current stream in place of its own, or returns at once.",
)
def stream_synchronize(target: Target) -> None:
    with opened(target) as rig:
        x = rig.zeros(N)
        rig.wait()
        side = rig.platform.new_stream()
        host = rig.platform.host_buffer((N,), torch.float32)
        with side:
            work(x)
            host.copy_(x, non_blocking=True)
        side.synchronize()
        expect(_all(host, CHAIN), "the host saw a copy before it was done", observed=host[:4])


@check(
    "platform.traffic",
    level=2,
    clause="platform/1.0: Event: record marks the current stream, wait makes the current stream wait for the mark",
    explain="Several streams take turns with several buffers, ordered by events alone. An order is lost on one of the "
    "streams, or an event that is recorded again forgets its first mark too early.",
)
def traffic(target: Target) -> Figures:
    rng = target.rng("traffic")
    with opened(target) as rig:
        buffers = [rig.zeros(N).fill_(number + 1) for number in range(BUFFERS)]
        gold = [number + 1 for number in range(BUFFERS)]
        rig.wait()
        streams: list[AbstractContextManager[object]] = [
            nullcontext(),
            *(rig.platform.new_stream() for _ in range(STREAMS)),
        ]
        used: list[Event | None] = [None] * BUFFERS
        for _ in range(TURNS):
            to, source = rng.permutation(BUFFERS)[:2].tolist()
            with streams[rng.integers(len(streams))]:
                for event in filter(None, (used[to], used[source])):
                    event.wait()
                buffers[to].add_(buffers[source]).remainder_(MODULUS)
                used[to] = used[source] = event = rig.platform.new_event()
                event.record()
            gold[to] = (gold[to] + gold[source]) % MODULUS
        for event in filter(None, used):
            event.synchronize(SECONDS)
        seen = [values(buffer) for buffer in buffers]
        expect(seen == [[one] for one in gold], "streams did not take turns", observed=seen, limit=gold)
        return {"turns": TURNS}


def _all(host: torch.Tensor, value: int) -> bool:
    return bool((host.numpy() == value).all())
