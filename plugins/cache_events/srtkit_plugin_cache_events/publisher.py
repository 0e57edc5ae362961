"""The sockets and the thread that serves them, so that nothing of a scheduler's step waits for a subscriber.

The scheduler puts events into a queue and goes on. The thread gathers what comes within some milliseconds into one
message; PUB drops for whoever is too far behind. Knows events only as a list.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence

import msgspec
import zmq

from srtkit.spec.errors import ConfigError
from srtkit.spec.prefix_cache import CacheEvent
from srtkit_plugin_cache_events import EventsOptions
from srtkit_plugin_cache_events.record import Record
from srtkit_plugin_cache_events.wire import decode_request, encode

PLACE = "prefix_cache.options.events"
MOST_EVENTS = 100_000
"""In the queue. Only a thread that does not run lets it grow so far."""
MOST_ANSWERS = 16
"""That one asker may leave unread before further ones are dropped."""
MOST_BYTES = 65_536
"""Of a request or subscription; whoever sends more is disconnected."""
GATHER_S = 0.005
"""How long what comes one after the other is gathered into one message."""
LINGER_MS = 100
"""How long closing waits for what subscribers have not taken yet."""
END = b"end"

_log = logging.getLogger("srtkit.cache.events")


class Publisher:
    """The scheduler's side. `overflows`: how often the queue was full.

    `endpoint` and `replay` are where the sockets are, with real ports.
    """

    def __init__(self, options: EventsOptions, page_size: int) -> None:
        """Raises `ConfigError` naming the option whose endpoint cannot be bound."""
        self.overflows = 0
        self._queue: deque[CacheEvent] = deque()
        self._context = zmq.Context()
        try:
            events = self._bound(zmq.PUB, "endpoint", options.endpoint, options.high_water)
            replay = self._bound(zmq.ROUTER, "replay", options.replay, MOST_ANSWERS)
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self.endpoint, self.replay = (one.get_string(zmq.LAST_ENDPOINT) for one in (events, replay))
        self._bell, bell = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        bell.bind("inproc://bell")
        self._bell.connect("inproc://bell")
        self._record = Record(page_size, options.ring)
        server = _Server(self._queue, self._record, options.topic.encode(), (events, replay, bell))
        self._thread = threading.Thread(target=server.run, name="srtkit-cache-events", daemon=True)
        self._thread.start()
        _log.info("cache events are published at %s and replayed at %s", self.endpoint, self.replay)

    @property
    def published(self) -> int:
        """Number of the last message."""
        return self._record.sequence

    def tell(self, events: Sequence[CacheEvent]) -> None:
        """Have these published. Never waits.

        Where the queue is full all in it is replaced by "cleared": subscribers then know too little, not too much.
        """
        if len(self._queue) + len(events) > MOST_EVENTS:
            self._queue.clear()
            self.overflows += 1
            events = [CacheEvent("cleared")]
        self._queue.extend(events)
        # Else the thread has been called before and has not yet found the queue empty.
        if len(self._queue) == len(events):
            self._ring(b"")

    def close(self) -> None:
        """Publish what is queued, end the thread, close the sockets. Idempotent."""
        if self._bell.closed:
            return
        self._ring(END)
        self._thread.join()
        self._bell.close()
        self._context.term()

    def _ring(self, what: bytes) -> None:
        with contextlib.suppress(zmq.Again):  # nobody hears it any more
            self._bell.send(what, zmq.NOBLOCK)

    def _bound(self, kind: int, option: str, endpoint: str, high_water: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.set_hwm(high_water)
        made.linger, made.maxmsgsize = LINGER_MS, MOST_BYTES
        try:
            _refuse_taken(endpoint)
            made.bind(endpoint)
        except (OSError, zmq.ZMQError) as error:
            cause = f"{endpoint} cannot be bound: {error.strerror or error}"
            remedy = 'name an address of this host and a port that is free, e.g. "tcp://127.0.0.1:*" for any'
            raise ConfigError(f"{PLACE}.{option}", cause, remedy) from None
        return made


def _refuse_taken(endpoint: str) -> None:
    """Raise `OSError` if somebody listens at the socket file: ZeroMQ would take it from him without a word."""
    if endpoint.startswith("ipc:///"):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(endpoint.removeprefix("ipc://")) == 0:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


class _Server:
    """The thread's side: all sockets but one are its own, and so is the record."""

    def __init__(
        self,
        queue: deque[CacheEvent],
        record: Record,
        topic: bytes,
        sockets: tuple[zmq.Socket[bytes], zmq.Socket[bytes], zmq.Socket[bytes]],
    ) -> None:
        self._queue = queue
        self._record = record
        self._topic = topic
        self._events, self._replay, self._bell = sockets

    def run(self) -> None:
        """Until the bell says END."""
        try:
            self._serve()
        finally:
            for one in (self._events, self._replay, self._bell):
                one.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._replay, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        ended = False
        while not ended:
            ready = dict(poller.poll())
            if self._bell in ready:
                ended = self._bell.recv() == END
                if not ended:
                    time.sleep(GATHER_S)
                self._publish()
            if self._replay in ready:
                self._answer()

    def _publish(self) -> None:
        """One message of all that is queued."""
        events = []
        with contextlib.suppress(IndexError):
            while True:
                events.append(self._queue.popleft())
        if events:
            message = self._record.add(events)
            number = self._record.sequence.to_bytes(8, "big")
            self._events.send_multipart((self._topic, number, message))

    def _answer(self) -> None:
        """One request. The frames before its last go back as they came: whose it is, and a REQ socket's delimiter."""
        *envelope, asked = self._replay.recv_multipart()
        try:
            head, messages = self._record.answer(decode_request(asked))
        except msgspec.MsgspecError as error:
            head, messages = self._record.refusal(str(error)), []
        self._replay.send_multipart([*envelope, encode(head), *messages])
