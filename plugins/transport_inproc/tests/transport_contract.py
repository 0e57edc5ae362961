"""What every transport promises, as tests to inherit: `class TestMine(TransportContract)` with a `sides` fixture.

Knows the contract only. Channels between processes are the matter of each plugin's own tests.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from srtkit.spec.errors import PeerGone, TransportError, TransportTimeout
from srtkit.spec.transport import Receiver, Sender, Transport

SOON = 5.0
"""Seconds that anything here may take at most."""


@dataclass
class Sides:
    """Two builds of one run: where the receivers and where the senders are opened. Inside one process, the same."""

    receiving: Transport
    sending: Transport

    def channel(self, name: str = "requests") -> tuple[Receiver, Sender]:
        """Both ends of a channel."""
        return self.receiving.receiver(name), self.sending.sender(name)


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[Future[object]]:
    """Run something beside the test; it must have ended when the block does."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # it belongs to the test, not to the thread
            future.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)  # a test that fails must not wait for it
    thread.start()
    yield future
    thread.join(SOON)
    assert not thread.is_alive()


def fill(sender: Sender, body: bytes, most: int = 50) -> int:
    """Send numbered messages until the channel is full; returns how many went."""
    for number in range(most):
        try:
            sender.send([b"%d" % number, body], 0.2)
        except TransportTimeout:
            return number
    raise AssertionError(f"{most} messages were sent to nobody who reads")


def pattern(size: int, salt: int = 0) -> bytes:
    """Bytes that differ at every offset a fault could shift them by."""
    return bytes((i * 31 + (i >> 8) + salt) & 255 for i in range(min(size, 4099))).ljust(size, b"\xa5")


class TransportContract:
    """Inherit and provide `sides`: channels with a bound of 8 messages."""

    @pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 65_536, 1 << 20, 64 << 20])
    def test_every_byte_arrives(self, sides: Sides, size: int) -> None:
        receiver, sender = sides.channel()
        sent = pattern(size)
        sender.send([sent])
        assert receiver.receive(SOON) == [sent]

    def test_frames_stay_apart(self, sides: Sides) -> None:
        receiver, sender = sides.channel()
        messages = [[b""], [b"", b""], [b"a", b"", b"bc"], [pattern(5000, i) for i in range(20)]]
        for message in messages:
            sender.send(message)
        received = [receiver.receive(SOON) for _ in messages]
        assert received == messages
        assert all(type(frame) is bytes for message in received if message for frame in message)

    def test_frames_may_be_reused_after_sending(self, sides: Sides) -> None:
        receiver, sender = sides.channel()
        for size in (10, 1 << 20):
            buffer = bytearray(size)
            sender.send([memoryview(buffer)])
            buffer[:] = b"x" * size
            assert receiver.receive(SOON) == [bytes(size)]

    def test_a_message_without_frames_is_our_mistake(self, sides: Sides) -> None:
        _, sender = sides.channel()
        with pytest.raises(AssertionError, match="at least one frame"):
            sender.send([])

    def test_order_holds_for_each_of_several_senders(self, sides: Sides) -> None:
        receiver = sides.receiving.receiver("requests")
        count = 300

        def send_all(name: int) -> None:
            sender = sides.sending.sender("requests")
            for number in range(count):
                sender.send([b"%d" % name, b"%d" % number], SOON)

        with ThreadPoolExecutor(3) as pool:
            done = [pool.submit(send_all, name) for name in range(3)]
            got: dict[bytes, list[int]] = defaultdict(list)
            for _ in range(3 * count):
                message = receiver.receive(SOON)
                assert message is not None
                got[message[0]].append(int(message[1]))
            for one in done:
                one.result(SOON)
        assert got == {b"%d" % name: list(range(count)) for name in range(3)}
        assert receiver.receive(0) is None

    def test_channels_do_not_mix(self, sides: Sides) -> None:
        names = ["a", "b", "a/b", "a.sock", "deltas:0", "..", "ü 1"]
        ends = [sides.channel(name) for name in names]
        for name, (_, sender) in zip(names, ends, strict=True):
            sender.send([name.encode()])
        for name, (receiver, _) in zip(names, ends, strict=True):
            assert receiver.receive(SOON) == [name.encode()]
            assert receiver.receive(0) is None

    def test_a_sender_may_be_there_first(self, sides: Sides) -> None:
        sender = sides.sending.sender("requests")
        for number in range(4):
            sender.send([b"%d" % number])
        receiver = sides.receiving.receiver("requests")
        assert [receiver.receive(SOON) for _ in range(4)] == [[b"%d" % number] for number in range(4)]

    def test_waiting_ends_in_time(self, sides: Sides) -> None:
        receiver, _ = sides.channel()
        for wait, least, most in ((0, 0, 0.5), (0.0004, 0, 0.5), (0.1, 0.09, 1.5)):
            begin = time.monotonic()
            assert receiver.receive(wait) is None
            assert receiver.drain(wait) == []
            assert 2 * least <= time.monotonic() - begin <= 2 * most

    def test_waiting_without_limit_ends_with_a_message(self, sides: Sides) -> None:
        receiver, sender = sides.channel()
        with in_thread(lambda: receiver.receive(None)) as waiting:
            assert not waiting.done()
            sender.send([b"now"])
            assert waiting.result(SOON) == [b"now"]

    def test_drain_takes_all_that_is_there_in_order(self, sides: Sides) -> None:
        receiver, sender = sides.channel()
        sent = [[b"%d" % number, b""] for number in range(4)]
        for message in sent:
            sender.send(message)
        got: list[list[bytes]] = []
        while len(got) < len(sent):
            part = receiver.drain(SOON)
            assert part
            got += part
        assert got == sent
        assert receiver.drain(0) == []

    def test_a_full_channel_stops_its_sender_and_loses_nothing(self, sides: Sides) -> None:
        receiver, sender = sides.channel()
        body = pattern(1 << 20)
        begin = time.monotonic()
        sent = fill(sender, body)
        assert sent == 8
        assert 0.2 <= time.monotonic() - begin <= SOON
        with in_thread(lambda: sender.send([b"%d" % sent, body], SOON)) as waiting:
            got = [receiver.receive(SOON) for _ in range(sent + 1)]
            waiting.result(SOON)
        assert got == [[b"%d" % number, body] for number in range(sent + 1)]

    def test_a_closed_receiver_is_noticed(self, sides: Sides) -> None:
        receiver, sender = sides.channel()
        sender.send([b"one"])
        assert receiver.receive(SOON) == [b"one"]
        receiver.close()
        for _ in range(2):
            with pytest.raises(PeerGone, match="requests"):
                sender.send([b"two"])
        with pytest.raises(PeerGone):
            sides.sending.sender("requests").send([b"three"])

    def test_a_closed_receiver_is_noticed_while_waiting(self, sides: Sides) -> None:
        receiver, sender = sides.channel()
        body = pattern(1 << 20)

        def send_until_it_fails() -> None:
            while True:
                sender.send([body], 30)

        with in_thread(send_until_it_fails) as sending:
            time.sleep(0.3)
            assert not sending.done()
            receiver.close()
            with pytest.raises(PeerGone):
                sending.result(SOON)

    def test_closing_a_sender_delivers_what_it_sent(self, sides: Sides) -> None:
        receiver, sender = sides.channel()
        sent = [[b"%d" % number] for number in range(8)]
        for message in sent:
            sender.send(message)
        sender.close()
        assert [receiver.receive(SOON) for _ in sent] == sent

    def test_closing_again_changes_nothing_and_using_is_refused(self, sides: Sides) -> None:
        receiver, sender = sides.channel()
        for end in (sender, receiver, sender, receiver):
            end.close()
        with pytest.raises(TransportError, match="closed"):
            receiver.receive(0)
        with pytest.raises(TransportError, match="closed"):
            receiver.drain(0)
        with pytest.raises(TransportError, match="closed"):
            sender.send([b"x"])
        for transport in (sides.sending, sides.receiving, sides.sending, sides.receiving):
            transport.close()
        with pytest.raises(TransportError, match="closed"):
            sides.receiving.receiver("requests")
        with pytest.raises(TransportError, match="closed"):
            sides.sending.sender("requests")

    def test_closing_a_transport_closes_its_ends(self, sides: Sides) -> None:
        receiver, sender = sides.channel()
        sides.sending.close()
        sides.receiving.close()
        with pytest.raises(TransportError, match="closed"):
            sender.send([b"x"])
        with pytest.raises(TransportError, match="closed"):
            receiver.receive(0)

    def test_a_channel_has_one_receiver_at_a_time(self, sides: Sides) -> None:
        first, _ = sides.channel()
        for transport in (sides.receiving, sides.sending):
            with pytest.raises(TransportError, match="has a receiver already"):
                transport.receiver("requests")
        first.close()
        second, sender = sides.channel()
        sender.send([b"again"])
        assert second.receive(SOON) == [b"again"]

    def test_no_thread_is_left(self, sides: Sides) -> None:
        before = threading.active_count()
        for name in ("a", "b"):
            receiver, sender = sides.channel(name)
            sender.send([b"x"])
            assert receiver.receive(SOON) == [b"x"]
        sides.sending.close()
        sides.receiving.close()
        assert threading.active_count() == before
