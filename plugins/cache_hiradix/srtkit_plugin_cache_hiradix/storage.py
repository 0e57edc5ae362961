"""Copies between host memory and a store, in threads. A copy that is given up touches no memory any more.

Content passes through memory of its own. A page is written to only while its copy cannot be given up, and what was read
of one counts if the copy is still wanted afterwards: a store that hangs, or answers late, cannot reach a page that is
another's by then. No lock is held while bytes move. What a store says of its errors, and what it raises, is logged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from srtkit.spec.kv_store import KVStore, Reply
from srtkit.spec.prefix_cache import Transfer
from srtkit_plugin_cache_hiradix.complaints import Complaints
from srtkit_plugin_cache_hiradix.memory import ComponentMemory

T = TypeVar("T")
BATCH_PAGES = 16
THREADS = 2  # of each direction: a request waits for what is read, and must not wait for what is written


class StorageCopies:
    """Runs transfers of tier "storage". All methods but the two that threads run are the step loop's."""

    def __init__(self, store: KVStore, name: str, memory: Mapping[str, ComponentMemory]) -> None:
        """`name` is that of the store in the log."""
        self._store = store
        self._complaints = Complaints(name)
        self._memory = memory
        self._reading, self._writing = (ThreadPoolExecutor(THREADS, f"tier-storage-{way}") for way in ("in", "out"))
        self._lock = threading.Lock()  # of the three below
        self._wanted: dict[int, float] = {}  # by transfer: until when
        self._filling: set[int] = set()  # transfers that write to a page right now: not given up before that is done
        self._answers: tuple[list[int], list[int]] = [], []

    def start(self, transfers: Sequence[Transfer]) -> None:
        """Hand them to threads: what is read apart from what is written, in batches of neighbours."""
        now = time.monotonic()
        with self._lock:
            self._wanted.update((one.id, now + one.needed_by) for one in transfers)
        for direction, threads, work in (("in", self._reading, self._read), ("out", self._writing, self._write)):
            if asked := [one for one in transfers if one.direction == direction]:
                threads.submit(self._guarded, work, asked)

    def finished(self) -> tuple[list[int], list[int]]:
        """Done and failed since the last call; those whose time is over have failed."""
        now = time.monotonic()
        with self._lock:
            (done, failed), self._answers = self._answers, ([], [])
            late = [number for number, until in self._wanted.items() if until < now and number not in self._filling]
            for number in late:
                del self._wanted[number]
        return done, failed + late

    def close(self) -> None:
        """Give up what is under way, wait for the calls that run, close the store."""
        with self._lock:
            self._wanted.clear()
        for threads in (self._reading, self._writing):
            threads.shutdown(wait=True, cancel_futures=True)
        self._store.close()

    def _guarded(self, work: Callable[[Sequence[Transfer]], None], transfers: Sequence[Transfer]) -> None:
        """`work`; if it raises, all that is not answered has failed: a future that nobody asks would keep it secret."""
        try:
            work(transfers)
        except Exception as error:  # the pages are computed, and serving goes on
            self._complaints.raised(error)
            for one in transfers:
                self._answer(one, ok=False)

    def _values(self, reply: Reply[T]) -> tuple[T, ...]:
        if reply.error:
            self._complaints.about(reply.error)
        return reply.values

    def _read(self, transfers: Sequence[Transfer]) -> None:
        """Pages of one prefix or of several: the store is asked at once which of them it has, and then for those."""
        if not (left := self._left(*transfers)):  # given up while they waited for a thread
            return
        pages = [(one, key, page) for one in transfers for key, page in zip(one.there, one.here.tolist(), strict=True)]
        stored = self._values(self._store.exists([key for _, key, _ in pages], left))
        for (one, _, _), there in zip(pages, stored, strict=True):
            if not there:
                self._answer(one, ok=False)
        pages = [part for part, there in zip(pages, stored, strict=True) if there]
        for start in range(0, len(pages), BATCH_PAGES):
            batch = pages[start : start + BATCH_PAGES]
            if not (left := self._left(*(one for one, _, _ in batch))):
                continue
            contents = self._values(self._store.get([key for _, key, _ in batch], left))
            for (one, _, page), content in zip(batch, contents, strict=True):
                if content is None or not self._filled(one, page, content):
                    self._answer(one, ok=False)
                elif page == one.here[-1]:
                    self._answer(one, ok=True)

    def _filled(self, one: Transfer, page: int, content: bytes) -> bool:
        with self._lock:
            if one.id not in self._wanted:
                return False
            self._filling.add(one.id)
        try:
            return self._memory[one.component].write(page, content)
        finally:
            with self._lock:
                self._filling.discard(one.id)

    def _write(self, transfers: Sequence[Transfer]) -> None:
        for one in transfers:
            pages = list(zip(one.there, one.here.tolist(), strict=True))
            memory, kept = self._memory[one.component], True
            for start in range(0, len(pages), BATCH_PAGES):
                blobs = [(key, memory.read(page)) for key, page in pages[start : start + BATCH_PAGES]]
                if not (left := self._left(one)):  # given up: what was read may be another page's content
                    kept = False
                    break
                values = self._values(self._store.put(blobs, left))
                kept &= all(values)
            self._answer(one, kept)

    def _left(self, *transfers: Transfer) -> float:
        """Seconds until the last of them is given up; 0.0 if none is wanted."""
        with self._lock:
            until = max(self._wanted.get(one.id, 0.0) for one in transfers)
        return max(0.0, until - time.monotonic())

    def _answer(self, one: Transfer, ok: bool) -> None:
        """Once for each, if it is still wanted."""
        with self._lock:
            if self._wanted.pop(one.id, None) is not None:
                self._answers[0 if ok else 1].append(one.id)
