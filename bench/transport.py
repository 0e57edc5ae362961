"""A message between two processes takes little time, also into an asyncio loop; so does one between two threads.

Round trips of small messages over the transports, halved. In the asyncio line a reader thread drains the channel and
wakes the loop once a batch. Table to standard error, JSON to standard output.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

import srtkit_plugin_transport_inproc as inproc
import srtkit_plugin_transport_zmq as zmq
from bench.goals import Finding, print_findings
from srtkit.spec.transport import Receiver, Sender, Transport, TransportBuild

BODY = bytes(200)
TRIPS = 3000
FLOOD = 20_000
GOAL_US = 100


def echo(transport: Transport) -> None:
    """Send back what arrives until an empty message."""
    receiver, sender = transport.receiver("there"), transport.sender("back")
    while message := receiver.receive(None):
        if message == [b""]:
            return
        sender.send(message)


def zmq_in(folder: Path) -> Transport:
    """The run's transport in this process."""
    return zmq.build(TransportBuild(folder, zmq.ZmqOptions()))


@contextmanager
def zmq_echo() -> Iterator[tuple[Sender, Receiver]]:
    """Ends that talk to an echo in another process."""
    with tempfile.TemporaryDirectory() as folder:
        transport = zmq_in(Path(folder))
        receiver, sender = transport.receiver("back"), transport.sender("there")
        with subprocess.Popen([sys.executable, "-m", "bench.transport", folder]) as process:
            yield sender, receiver
            sender.send([b""])
            process.wait()
        transport.close()


@contextmanager
def inproc_echo() -> Iterator[tuple[Sender, Receiver]]:
    """Ends that talk to an echo in another thread."""
    transport = inproc.build(TransportBuild(Path(), inproc.InprocOptions()))
    thread = threading.Thread(target=echo, args=(transport,))
    thread.start()
    sender = transport.sender("there")
    yield sender, transport.receiver("back")
    sender.send([b""])
    thread.join()
    transport.close()


def one_way(claim: str, trip: Callable[[], object]) -> Finding:
    """Half of the median round trip, and the 1st and 99th percentile as its range, in µs."""
    micros = []
    for _ in range(TRIPS):
        begin = time.perf_counter()
        trip()
        micros.append(5e5 * (time.perf_counter() - begin))
    micros.sort()
    low, high = micros[TRIPS // 100], micros[-1 - TRIPS // 100]
    return Finding(claim, "<=", GOAL_US, "µs", statistics.median(micros), low, high)


def blocking(claim: str, sender: Sender, receiver: Receiver) -> Finding:
    """Send, and block until the echo is here."""

    def trip() -> None:
        sender.send([BODY])
        receiver.receive(None)

    trip()
    return one_way(claim, trip)


def into_asyncio(claim: str, sender: Sender, receiver: Receiver) -> Finding:
    """Send from a loop; a thread drains the echo's channel and wakes the loop."""
    loop = asyncio.new_event_loop()
    arrived = asyncio.Event()
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            if receiver.drain(0.1):
                loop.call_soon_threadsafe(arrived.set)

    async def trip() -> None:
        arrived.clear()
        sender.send([BODY])
        await arrived.wait()

    thread = threading.Thread(target=read)
    thread.start()
    found = one_way(claim, lambda: loop.run_until_complete(trip()))
    ended.set()
    thread.join()
    loop.close()
    return found


def flood(sender: Sender, receiver: Receiver) -> Finding:
    """Messages a second there and back when nobody waits for an answer."""

    def send() -> None:
        for _ in range(FLOOD):
            sender.send([BODY])

    thread = threading.Thread(target=send)
    begin = time.perf_counter()
    thread.start()
    left = FLOOD
    while left:
        left -= len(receiver.drain(None))
    seconds = time.perf_counter() - begin
    thread.join()
    return Finding("zmq, messages a second through an echo", ">=", 10_000, "1/s", FLOOD / seconds)


def main() -> None:
    """Measures and prints; with a folder as argument, is the other process."""
    if len(sys.argv) > 1:
        transport = zmq_in(Path(sys.argv[1]))
        echo(transport)
        transport.close()
        return
    with zmq_echo() as (sender, receiver):
        found = [
            blocking("zmq, one way between processes", sender, receiver),
            into_asyncio("zmq, one way, answers read by asyncio", sender, receiver),
            flood(sender, receiver),
        ]
    with inproc_echo() as (sender, receiver):
        found.append(blocking("inproc, one way between threads", sender, receiver))
    print_findings(found, Console(stderr=True))
    print(json.dumps({"goals": [one.as_data() for one in found], "body_bytes": len(BODY)}, indent=1))


if __name__ == "__main__":
    main()
