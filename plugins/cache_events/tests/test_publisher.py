"""What goes over the sockets, and what happens when somebody is slow: to the one who is, not to the scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from plugins.cache_events.tests.helpers import PAGE, publisher, stored, until
from srtkit.spec.prefix_cache import CacheEvent
from srtkit_plugin_cache_events import publisher as module
from srtkit_plugin_cache_events.client import Follower, View
from srtkit_plugin_cache_events.publisher import Publisher
from srtkit_plugin_cache_events.wire import Batch, decode_batch


@contextmanager
def socket(kind: int, endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    """A reader that knows nothing but ZeroMQ."""
    with zmq.Context() as context, context.socket(kind) as made:
        made.linger = 0
        made.connect(endpoint)
        yield made


@contextmanager
def subscriber(publisher: Publisher) -> Iterator[zmq.Socket[bytes]]:
    """One whose subscription has reached the server, and that has read all messages so far."""
    with socket(zmq.SUB, publisher.endpoint) as made:
        made.subscribe(b"")
        tell(publisher, CacheEvent("cleared"))
        while not made.poll(20):
            tell(publisher, CacheEvent("cleared"))
        while int.from_bytes(made.recv_multipart()[1], "big") < publisher.published:
            pass
        yield made


def ask(publisher: Publisher, *request: Any) -> tuple[list[Any], list[Batch]]:
    """By a REQ socket: head and batches."""
    with socket(zmq.REQ, publisher.replay) as asking:
        asking.send(msgspec.msgpack.encode(request))
        head, *batches = asking.recv_multipart()
    return msgspec.msgpack.decode(head), list(map(decode_batch, batches))


def tell(publisher: Publisher, *events: CacheEvent) -> None:
    """As a message of its own."""
    number = publisher.published + 1
    publisher.tell(list(events))
    while publisher.published < number:
        time.sleep(0.001)


def test_a_message_is_what_the_readme_says() -> None:
    one = publisher(topic="mine")
    with subscriber(one) as reader:
        number = one.published + 1
        one.tell([stored([2**64 - 1, 5], 7), CacheEvent("removed", (5,), 2**64 - 1, b"salt"), CacheEvent("cleared")])
        topic, counted, payload = reader.recv_multipart()
    assert (topic, counted) == (b"mine", number.to_bytes(8, "big"))
    version, run, sequence, at, page_size, events = msgspec.msgpack.decode(payload)
    assert (version, sequence, page_size) == (1, number, PAGE)
    assert 0 < run < 2**64
    assert abs(at - time.time()) < 60
    expected = [["stored", [2**64 - 1, 5], 7, b""], ["removed", [5], 2**64 - 1, b"salt"], ["cleared", [], 0, b""]]
    assert events == expected
    one.close()
    one.close()


def test_missed_messages_are_replayed_as_far_as_the_ring_goes() -> None:
    one = publisher(ring=300)
    for number in range(1, 310):
        one._record.add([stored([number], number - 1)])  # without waiting for the thread, which rests
    head, _ = ask(one, 1, "snapshot")
    run = head[2]
    assert head == [1, "snapshot", run, 10, 309, ""]
    head, batches = ask(one, 1, "messages", run, 10)
    assert head[1] == "messages"
    assert [batch.sequence for batch in batches] == list(range(10, 266))  # 256 at once
    head, batches = ask(one, 1, "messages", run, 266)
    assert [batch.sequence for batch in batches] == list(range(266, 310))
    assert ask(one, 1, "messages", run, 310) == ([1, "messages", run, 10, 309, ""], [])
    assert ask(one, 1, "messages", run, 9) == ([1, "gone", run, 10, 309, "9 is not kept"], [])
    assert ask(one, 1, "messages", run, 311)[0][1] == "gone"
    assert ask(one, 1, "messages", run + 1, 20) == ([1, "gone", run, 10, 309, "another run of the server"], [])
    one.close()


def test_a_snapshot_is_what_is_stored_with_parents_first() -> None:
    one = publisher()
    tell(one, stored([1, 2, 3]), stored([4, 5], 2), stored([6], 3), CacheEvent("stored", (7, 8), 0, b"salt"))
    tell(one, CacheEvent("removed", (5,), 4), CacheEvent("removed", (6,), 3), stored([9, 10], 3))
    _, [batch] = ask(one, 1, "snapshot")
    cleared, *chains = ((event.kind, list(event.hashes), event.parent, event.namespace) for event in batch.events)
    assert batch.sequence == 2
    assert cleared == ("cleared", [], 0, b"")
    assert chains == [
        ("stored", [1, 2, 3], 0, b""),
        ("stored", [4], 2, b""),
        ("stored", [9, 10], 3, b""),
        ("stored", [7, 8], 0, b"salt"),
    ]
    one.close()


@pytest.mark.parametrize("request_", [(2, "snapshot"), (1, "everything"), (1,), ("1", "snapshot"), ()])
def test_what_is_no_request_is_told_so_and_does_no_harm(request_: Sequence[Any]) -> None:
    one = publisher()
    head, batches = ask(one, *request_)
    assert (head[1], batches) == ("error", [])
    assert head[5]
    with socket(zmq.DEALER, one.replay) as asking:
        asking.send(b"\xc1 no MessagePack")
        assert msgspec.msgpack.decode(asking.recv_multipart()[0])[1] == "error"
    assert ask(one, 1, "snapshot")[0][1] == "snapshot"
    one.close()


@pytest.mark.parametrize("ring", [3, 10_000])
def test_a_slow_subscriber_loses_messages_and_the_scheduler_no_time(ring: int, tmp_path: Path) -> None:
    """More than all buffers on the way hold, while nobody reads: then a replay or, beyond the ring, a snapshot."""
    where = {"endpoint": f"ipc://{tmp_path}/e", "replay": f"ipc://{tmp_path}/r"}  # whose buffers do not grow
    one = publisher(**where, high_water=1, ring=ring)
    follower = Follower({"a": (one.endpoint, one.replay)}, high_water=1, check_seconds=60)
    until(follower, lambda view: view.current)
    with socket(zmq.SUB, one.endpoint) as dead:  # one more, which never reads: waiting for it would have no end
        dead.subscribe(b"")
        for number in range(1, 61):
            tell(one, CacheEvent("cleared"), stored(range(number << 40, (number << 40) + 8000)))
        one.tell([stored([1])])
        view = until(follower, lambda view: view.current and 1 in view.hashes)
    assert view.hashes == {1, *range(60 << 40, (60 << 40) + 8000)}
    assert view.missed > 0
    assert view.snapshots == (2 if ring == 3 else 1)
    follower.close()
    one.close()


def test_a_full_queue_is_counted_and_leaves_followers_with_less_not_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EVENTS", 10)
    runs = Event()
    runs.set()
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda _: runs.wait()))
    one = publisher()
    follower = Follower({"a": (one.endpoint, one.replay)})
    until(follower, lambda view: view.current)
    tell(one, stored([1, 2]))
    runs.clear()  # the thread
    for number in range(100, 125):
        one.tell([stored([number])])
    runs.set()
    assert one.overflows == 2
    assert until(follower, lambda view: view.sequence == 2).hashes == {121, 122, 123, 124}
    late = View()
    late.follow(ask(one, 1, "snapshot")[1][0])
    assert late.hashes == follower.views["a"].hashes
    follower.close()
    one.close()


def test_closing_says_what_is_still_queued_and_ends_the_thread() -> None:
    one = publisher()
    with subscriber(one) as reader:
        one.tell([stored([1])])
        one.close()
        assert decode_batch(reader.recv_multipart()[2]).events[0].hashes == [1]
    assert not one._thread.is_alive()


def test_a_request_that_nests_too_deeply_is_refused_and_the_next_one_answered() -> None:
    one = publisher()
    with socket(zmq.DEALER, one.replay) as asking:
        asking.send_multipart([b"", b"\x95\x01\xa8snapshot\x00\x00" + b"\x91" * 60_000 + b"\x00"])
        assert asking.poll(5000)
        assert msgspec.msgpack.decode(asking.recv_multipart()[1])[1] == "error"
    assert ask(one, 1, "snapshot")[0][1] == "snapshot"
    one.close()
