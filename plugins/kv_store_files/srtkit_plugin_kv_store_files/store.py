"""The store: one file a blob, written beside its place and renamed into it, so that it is there whole or not at all.

Nothing else is kept on disk: no index that could disagree with the files. Times of files are only compared
with each other, so a clock that jumps changes which files go first, and nothing else.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from srtkit.spec.errors import ConfigError
from srtkit.spec.kv_store import KEY_BYTES, Blob, KVStore, Reply
from srtkit_plugin_kv_store_files import FilesOptions
from srtkit_plugin_kv_store_files.form import HEADER_BYTES, content_of, header

PART = "kv_store:files"
KEPT_SHARE = 0.9  # of the bound: what an eviction leaves, so that the next one is not due at once
UNFINISHED = ".unfinished"
FORGOTTEN_SECONDS = 600.0  # a file that was not finished for so long has no writer any more

T = TypeVar("T")
Item = TypeVar("Item")


class FileStore(KVStore):
    """Files below `path`, in folders by the first byte of the key. All methods may run in several threads."""

    def __init__(self, options: FilesOptions) -> None:
        """Raises `ConfigError` if the folder cannot be used."""
        self._root = Path(options.path).expanduser()
        self._bound = int(options.max_gib * 2**30)
        self._lock = threading.Lock()  # of the two below, and of evicting
        self._size = 0  # bytes of files, as far as this process knows
        self._serial = 0
        self._token = secrets.token_hex(4)  # a process id is one's own only within a container and a store
        self._closed = False
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)  # pages tell of prompts
            for first in range(256):
                (self._root / f"{first:02x}").mkdir(exist_ok=True)
            self._evict(incoming=0)
        except OSError as error:
            raise ConfigError(PART, f"{self._root} cannot be used: {error}", "choose another path") from None

    def put(self, blobs: Sequence[tuple[bytes, Blob]], seconds: float) -> Reply[bool]:
        """Write what is not there yet. A full disk, or a blob beyond the bound, is an error in the reply."""
        return self._each(blobs, seconds, self._write, False)

    def get(self, keys: Sequence[bytes], seconds: float) -> Reply[bytes | None]:
        """Read, check and return. What is not as it was written is removed."""
        return self._each(keys, seconds, self._read, None)

    def exists(self, keys: Sequence[bytes], seconds: float) -> Reply[bool]:
        """Whether the files are there; damage shows when they are read."""
        return self._each(keys, seconds, lambda key: self._place(key).exists(), False)

    def close(self) -> None:
        """Nothing is open between calls."""
        self._closed = True

    def _each(self, items: Sequence[Item], seconds: float, work: Callable[[Item], T], miss: T) -> Reply[T]:
        """`work` on each item until the time is over; what fails is a miss and leaves its reason."""
        deadline = time.monotonic() + seconds
        values: list[T] = []
        error = ""
        for item in items:
            if self._closed or time.monotonic() > deadline:
                error = "the store is closed" if self._closed else f"{len(values)} of {len(items)} in {seconds:g} s"
                break
            try:
                values.append(work(item))
            except OSError as problem:
                values.append(miss)
                error = str(problem)
        return Reply((*values, *[miss] * (len(items) - len(values))), error and f"{PART}: {error}")

    def _place(self, key: bytes) -> Path:
        assert len(key) == KEY_BYTES, "a key has 32 bytes"
        name = key.hex()
        return self._root / name[:2] / name

    def _read(self, key: bytes) -> bytes | None:
        place = self._place(key)
        try:
            file = place.read_bytes()
        except FileNotFoundError:
            return None
        content = content_of(key, file)
        if content is None:
            place.unlink(missing_ok=True)
            return None
        with suppress(OSError):  # another process may have evicted it since; the content is good all the same
            os.utime(place)
        return content

    def _write(self, blob: tuple[bytes, Blob]) -> bool:
        key, content = blob
        place = self._place(key)
        if place.exists():
            return True
        size = HEADER_BYTES + memoryview(content).nbytes
        with self._lock:
            if self._size + size > self._bound:
                self._evict(incoming=size)
            self._size += size
            self._serial += 1
            unfinished = place.with_name(f"{self._token}-{self._serial}{UNFINISHED}")
        try:
            with unfinished.open("wb") as file:
                file.write(header(key, content))
                file.write(content)
            unfinished.replace(place)
        except OSError:
            with suppress(OSError):
                unfinished.unlink()
            with self._lock:
                self._size -= size
            raise
        return True

    def _evict(self, incoming: int) -> None:
        """Count the files of everybody who uses the folder, and remove the oldest if `incoming` bytes do not fit."""
        if incoming > self._bound:
            raise OSError(f"a blob of {incoming:,} bytes is larger than the bound, {self._bound:,}")
        files = sorted(self._files())
        self._size = sum(size for _, size, _ in files)
        keep = self._bound if self._size + incoming <= self._bound else int(self._bound * KEPT_SHARE)
        for _, size, path in files:
            if self._size + incoming <= keep or not self._size:
                return
            Path(path).unlink(missing_ok=True)
            self._size -= size

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """(time of last use, size, path) of every blob. Removes what dead writers have left."""
        for folder in os.scandir(self._root):
            for entry in os.scandir(folder) if folder.is_dir() else ():
                with suppress(FileNotFoundError):  # evicted by another process while we look
                    found = entry.stat()
                    if not entry.name.endswith(UNFINISHED):
                        yield found.st_mtime, found.st_size, entry.path
                    elif abs(time.time() - found.st_mtime) > FORGOTTEN_SECONDS:
                        Path(entry.path).unlink()
