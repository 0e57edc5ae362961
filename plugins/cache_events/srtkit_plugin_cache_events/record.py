"""What has been told: the last messages, for replay, and what is stored by now, for snapshots.

Numbers messages and encodes them. Knows no sockets and no threads; one thread uses it.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from srtkit.spec.prefix_cache import CacheEvent
from srtkit_plugin_cache_events.wire import VERSION, Batch, Event, Kind, Reply, Request, encode

MOST_MESSAGES = 256
"""In one answer; whoever wants more asks again."""


class Record:
    """The messages of one run. `run` is a random number that tells this one from those before and after a restart."""

    def __init__(self, page_size: int, ring: int) -> None:
        self.run = secrets.randbits(63) + 1
        self.sequence = 0
        self._page_size = page_size
        self._ring: deque[bytes] = deque(maxlen=ring)
        # Per namespace, hash → hash of the page before: about 100 bytes a page. Parents stand before their children.
        self._stored: dict[bytes, dict[int, int]] = {}

    def add(self, events: Sequence[CacheEvent]) -> bytes:
        """The next message, which tells these events; `sequence` is its number."""
        self.sequence += 1
        message = self._message(tuple(Event(one.kind, one.hashes, one.parent, one.namespace) for one in events))
        self._ring.append(message)
        for event in events:
            self._note(event)
        return message

    def answer(self, request: Request) -> tuple[Reply, list[bytes]]:
        """The head of the answer, and the messages that go with it."""
        if request.version != VERSION:
            return self.refusal(f"this is version {VERSION}, asked was version {request.version}"), []
        if request.want == "snapshot":
            return self._reply("snapshot"), [self._message((Event("cleared"), *self._chains()))]
        if request.run != self.run:
            return self._reply("gone", "another run of the server"), []
        if not self._first <= request.sequence <= self.sequence + 1:
            return self._reply("gone", f"{request.sequence} is not kept"), []
        start = request.sequence - self._first
        return self._reply("messages"), list(islice(self._ring, start, start + MOST_MESSAGES))

    def refusal(self, why: str) -> Reply:
        """The answer to what is no request."""
        return self._reply("error", why)

    @property
    def _first(self) -> int:
        """Number of the oldest message that is kept, or of the next one."""
        return self.sequence - len(self._ring) + 1

    def _reply(self, kind: Kind, note: str = "") -> Reply:
        return Reply(VERSION, kind, self.run, self._first, self.sequence, note)

    def _message(self, events: tuple[Event, ...]) -> bytes:
        return encode(Batch(VERSION, self.run, self.sequence, time.time(), self._page_size, events))

    def _note(self, event: CacheEvent) -> None:
        if event.kind == "cleared":
            self._stored.clear()
        elif event.kind == "stored":
            pages = self._stored.setdefault(event.namespace, {})
            pages.update(zip(event.hashes, (event.parent, *event.hashes), strict=False))
        elif pages := self._stored.get(event.namespace, {}):
            for one in event.hashes:
                pages.pop(one, None)
            if not pages:
                del self._stored[event.namespace]

    def _chains(self) -> Iterator[Event]:
        """All that is stored, as few events: a new one begins where a page does not follow the one noted before it."""
        for namespace, pages in self._stored.items():
            hashes = np.fromiter(pages.keys(), np.uint64, len(pages))
            parents = np.fromiter(pages.values(), np.uint64, len(pages))
            breaks = np.flatnonzero(parents[1:] != hashes[:-1]) + 1
            for chain, before in zip(np.split(hashes, breaks), parents[[0, *breaks]].tolist(), strict=True):
                yield Event("stored", chain.tolist(), before, namespace)
