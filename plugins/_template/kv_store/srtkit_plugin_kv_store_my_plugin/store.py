"""Pages by key, in memory, those used last at the end. Knows nothing of what is in them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import final

from srtkit.spec.kv_store import Blob, KVStore, Reply


@final
class MyPluginStore(KVStore):
    """All state is guarded by `_lock`: several threads call at once."""

    def __init__(self, max_pages: int) -> None:
        self._max_pages = max_pages
        self._pages: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def put(self, blobs: Sequence[tuple[bytes, Blob]], seconds: float) -> Reply[bool]:
        """Keep copies; the caller may reuse its buffers."""
        kept, deadline = 0, time.monotonic() + seconds
        for key, content in blobs:
            if self._closed or time.monotonic() > deadline:
                break
            with self._lock:
                self._pages[key] = bytes(content)
                self._pages.move_to_end(key)
                while len(self._pages) > self._max_pages:
                    self._pages.popitem(last=False)
            kept += 1
        return Reply((True,) * kept + (False,) * (len(blobs) - kept), self._why(kept == len(blobs)))

    def get(self, keys: Sequence[bytes], seconds: float) -> Reply[bytes | None]:
        """What is there; None for a miss."""
        with self._lock:
            values = tuple(None if self._closed else self._pages.get(key) for key in keys)
            for key, value in zip(keys, values, strict=True):
                if value is not None:
                    self._pages.move_to_end(key)
        return Reply(values, self._why(True))

    def exists(self, keys: Sequence[bytes], seconds: float) -> Reply[bool]:
        """Whether they are there."""
        return Reply(tuple(not self._closed and key in self._pages for key in keys), self._why(True))

    def close(self) -> None:
        """Forget everything."""
        self._closed = True
        with self._lock:
            self._pages.clear()

    def _why(self, done: bool) -> str:
        """The error of a reply."""
        if self._closed:
            return "the store is closed"
        return "" if done else "the time was over"
