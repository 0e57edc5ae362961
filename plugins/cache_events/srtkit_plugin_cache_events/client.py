"""Follows the caches of several servers: for each the set of page hashes that it has by now.

For routers and tests. One thread calls `poll` now and then; nothing runs in between. Knows messages and no cache.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import zmq

from srtkit_plugin_cache_events.hashes import page_hashes
from srtkit_plugin_cache_events.wire import VERSION, Batch, Reply, Request, decode_batch, decode_reply, encode

__all__ = ["Follower", "View", "page_hashes"]

ANSWER_S = 2.0
"""After which a request is made again."""
RETRY_S = 0.05
"""After which one that could not be sent is."""


@dataclass
class View:
    """What is known of one server. `run` 0: nothing yet.

    `missed` counts messages that were lost on the way (and then asked for again), `snapshots` how often the set was
    taken as a whole. `heard` is when something came last, of `time.monotonic`: whether a silent server is dead is for
    the caller to judge. `current`: as far as the server has been heard, nothing is missing.
    """

    hashes: set[int] = field(default_factory=set)
    run: int = 0
    sequence: int = 0
    page_size: int = 0
    missed: int = 0
    snapshots: int = 0
    heard: float = 0.0
    current: bool = False

    def follow(self, batch: Batch) -> None:
        """Apply one message. What is stored twice or removed unknown changes nothing."""
        self.sequence, self.page_size = batch.sequence, batch.page_size
        for event in batch.events:
            if event.kind == "stored":
                self.hashes.update(event.hashes)
            elif event.kind == "removed":
                self.hashes.difference_update(event.hashes)
            else:
                self.hashes.clear()

    def leading(self, hashes: Sequence[int]) -> int:
        """How many pages of a prompt, from its first, the server has."""
        return next((n for n, one in enumerate(hashes) if one not in self.hashes), len(hashes))


class Follower:
    """`servers`: name → (endpoint of events, endpoint of replay). `views`: name → what is known of that server.

    Without news of a server for `check_seconds` it is asked whether there are any: the last message before a pause may
    have been lost, too.
    """

    def __init__(
        self,
        servers: Mapping[str, tuple[str, str]],
        *,
        topic: str = "srtkit.cache",
        check_seconds: float = 1.0,
        high_water: int = 10_000,
    ) -> None:
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._links: dict[zmq.Socket[bytes], _Link] = {}
        self.views: dict[str, View] = {}
        for name, endpoints in servers.items():
            link = _Link(self._context, endpoints, topic.encode(), check_seconds, high_water)
            self.views[name] = link.view
            for socket in (link.events, link.replay):
                self._links[socket] = link
                self._poller.register(socket, zmq.POLLIN)

    def poll(self, seconds: float = 0.0) -> int:
        """Take what has come, or comes within that time; how many messages were applied.

        Raises `msgspec.MsgspecError` or `ValueError` for what is not of this version.
        """
        end = time.monotonic() + seconds
        applied = 0
        while True:
            now = time.monotonic()
            for link in self._links.values():
                if now >= link.due:
                    link.ask()
            wake = min([end, *(link.due for link in self._links.values())])
            ready = self._poller.poll(max(0, math.ceil(1000 * (wake - now))))
            for socket, _ in ready:
                link = self._links[socket]
                applied += link.take_event() if socket is link.events else link.take_reply()
            if time.monotonic() >= end:
                return applied

    def leading(self, hashes: Sequence[int]) -> dict[str, int]:
        """How many pages of a prompt (`page_hashes`) each server has."""
        return {name: view.leading(hashes) for name, view in self.views.items()}

    def close(self) -> None:
        """Free the sockets. Idempotent."""
        self._context.destroy(linger=0)


class _Link:
    """One server: two sockets and a view. `due`: when to ask next, of `time.monotonic`."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoints: tuple[str, str],
        topic: bytes,
        check_seconds: float,
        high_water: int,
    ) -> None:
        self.view = View()
        self.due = 0.0
        self._check_seconds = check_seconds
        self._newest = 0  # number of the newest message that is known to exist
        self._gone = False  # the next message cannot be replayed any more
        self._asked = False  # a request was made, or could not be yet: `due` has it made again
        self.events, self.replay = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.events.rcvhwm = high_water
        self.events.subscribe(topic)
        self.replay.immediate = True  # no request waits for a server that is not there
        for socket, endpoint in zip((self.events, self.replay), endpoints, strict=True):
            socket.connect(endpoint)

    def ask(self) -> None:
        """Ask for what is missing, or whether anything is."""
        view = self.view
        snapshot = self._gone or not view.run
        request = Request(VERSION, "snapshot" if snapshot else "messages", view.run, view.sequence + 1)
        pause = ANSWER_S
        try:
            self.replay.send(encode(request), zmq.NOBLOCK)
        except zmq.Again:
            pause = RETRY_S
        self._asked = True
        self.due = time.monotonic() + pause

    def take_event(self) -> int:
        """One published message: 1 if it was the next one."""
        batch, view = _batch(self.events.recv_multipart()[-1]), self.view
        self._heard()
        if batch.run != view.run:
            if view.run:
                self._begin_again()
            return 0
        if batch.sequence == view.sequence + 1:
            view.follow(batch)
            self._newest = max(self._newest, batch.sequence)
            return 1
        if batch.sequence > self._newest:
            view.missed += batch.sequence - self._newest - 1
            self._newest = batch.sequence
        if batch.sequence > view.sequence:
            view.current = False
            if not self._asked:
                self.ask()
        return 0

    def take_reply(self) -> int:
        """One answer: how many messages it brought."""
        head, *messages = self.replay.recv_multipart()
        reply, view = decode_reply(head), self.view
        _check(reply)
        self._asked = False
        self._heard()
        applied = 0
        self._gone = reply.kind == "gone"
        if reply.kind == "snapshot":
            applied = self._take_snapshot(_batch(messages[0]))
        elif reply.kind == "messages" and reply.run == view.run:
            applied = sum(map(self._take_next, map(_batch, messages)))
            self._newest = max(self._newest, reply.last)
        view.current = bool(view.run) and not self._gone and view.sequence >= self._newest
        if not view.current:
            self.ask()
        return applied

    def _take_next(self, batch: Batch) -> bool:
        if batch.sequence != self.view.sequence + 1:
            return False
        self.view.follow(batch)
        return True

    def _take_snapshot(self, batch: Batch) -> int:
        """The set as a whole; not if it is older than what is known, as the answer to a request made twice may be."""
        view = self.view
        if batch.run == view.run and batch.sequence <= view.sequence:
            return 0
        self._newest = max(self._newest if batch.run == view.run else 0, batch.sequence)
        view.run = batch.run
        view.snapshots += 1
        view.follow(batch)
        return 1

    def _begin_again(self) -> None:
        """The server is not the one it was: what is known of it holds no more."""
        view = self.view
        view.hashes.clear()
        view.run = view.sequence = self._newest = 0
        view.current = False
        self.ask()

    def _heard(self) -> None:
        self.view.heard = time.monotonic()
        if not self._asked:
            self.due = self.view.heard + self._check_seconds


def _batch(message: bytes) -> Batch:
    batch = decode_batch(message)
    if batch.version != VERSION:
        raise ValueError(f"a message of version {batch.version}; this reads version {VERSION}")
    return batch


def _check(reply: Reply) -> None:
    if reply.version != VERSION or reply.kind == "error":
        raise ValueError(f"the server (version {reply.version}) refuses version {VERSION}: {reply.note}")
