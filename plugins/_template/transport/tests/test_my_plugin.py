"""Messages arrive whole and in order; a full channel blocks; a closed one says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from srtkit.spec.capabilities import No
from srtkit.spec.errors import PeerGone, TransportError, TransportTimeout
from srtkit.spec.transport import Transport, TransportBuild
from srtkit_plugin_transport_my_plugin import Options, srtkit_transport


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    transport = srtkit_transport().build(TransportBuild(tmp_path, Options(bound=2)))
    yield transport
    transport.close()


def test_it_says_that_it_does_not_reach_other_processes() -> None:
    answer = srtkit_transport().capabilities(Options())
    assert isinstance(answer.processes, No)
    assert not answer.fan_out


@pytest.mark.parametrize("receiver_first", [True, False])
def test_messages_arrive_whole_and_in_order(transport: Transport, receiver_first: bool) -> None:
    if receiver_first:
        receiver, sender = transport.receiver("steps"), transport.sender("steps")
    else:
        sender, receiver = transport.sender("steps"), transport.receiver("steps")
    buffer = bytearray(b"first")
    sender.send([memoryview(buffer), b""])
    buffer[:] = b"other"
    sender.send([b"second"])
    assert receiver.receive(0) == [b"first", b""]
    assert receiver.drain(0) == [[b"second"]]
    assert receiver.receive(0) is None
    assert receiver.drain(0) == []


def test_channels_do_not_mix(transport: Transport) -> None:
    transport.sender("a").send([b"a"])
    assert transport.receiver("b").receive(0) is None
    assert transport.receiver("a").receive(0) == [b"a"]


def test_many_senders_lose_nothing_and_keep_their_order(transport: Transport) -> None:
    receiver = transport.receiver("many")

    def send(name: int) -> None:
        sender = transport.sender("many")
        for number in range(50):
            sender.send([bytes([name, number])])
        sender.close()

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(send, name) for name in range(4)]
        got = [receiver.receive(30) for _ in range(200)]
        for one in done:
            one.result()
    for name in range(4):
        assert [message[0][1] for message in got if message and message[0][0] == name] == list(range(50))


def test_a_full_channel_blocks_then_times_out(transport: Transport) -> None:
    sender = transport.sender("full")
    sender.send([b"1"])
    sender.send([b"2"])
    with pytest.raises(TransportTimeout, match="full"):
        sender.send([b"3"], timeout=0.01)
    receiver = transport.receiver("full")
    receiver.receive(0)
    sender.send([b"3"], timeout=0.01)
    assert receiver.drain(0) == [[b"2"], [b"3"]]


def test_closing_the_receiver_frees_a_sender_that_waits(transport: Transport) -> None:
    receiver, sender = transport.receiver("gone"), transport.sender("gone")
    sender.send([b"1"])
    sender.send([b"2"])
    gone = threading.Event()

    def send() -> None:
        try:
            sender.send([b"3"], timeout=3600)
        except PeerGone:
            gone.set()

    threading.Thread(target=send, daemon=True).start()
    assert not gone.wait(0.05)
    receiver.close()
    assert gone.wait(30)


def test_ends_are_opened_once_and_closed_for_good(transport: Transport) -> None:
    receiver, sender = transport.receiver("once"), transport.sender("once")
    with pytest.raises(TransportError, match="receiver already"):
        transport.receiver("once")
    sender.close()
    sender.close()
    with pytest.raises(TransportError, match="closed"):
        sender.send([b"late"])
    receiver.close()
    receiver.close()
    with pytest.raises(TransportError, match="closed"):
        receiver.receive(0)
    with pytest.raises(PeerGone):
        transport.sender("once").send([b"late"])
    transport.close()
    with pytest.raises(TransportError, match="was closed"):
        transport.sender("other")
