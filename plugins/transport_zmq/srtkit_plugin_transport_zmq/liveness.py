"""Whether a channel's receiver lives, told by a lock on a file: the kernel lets go of it however a process ends.

ZeroMQ cannot tell: to a PUSH socket a dead peer is one that may come back. An empty file means that its
receiver is only just opening; a file with text and without a lock, that its receiver has been and gone.
Knows no sockets. Not to be carried over a fork without exec: the child would keep the lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

OPENING_S = 0.2
"""How long a receiver tries to lock: a sender that looks holds a shared lock for some microseconds."""


class Claim:
    """The receiver's side: an exclusive lock on the file, held until `close`."""

    def __init__(self, path: Path) -> None:
        """Raises `BlockingIOError` when another receiver holds it."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + OPENING_S
        while not _try_lock(self._fd, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                self.close()
                raise BlockingIOError(f"{path} is locked")
            time.sleep(0.001)
        os.truncate(self._fd, 0)
        os.write(self._fd, b"%d\n" % os.getpid())

    def close(self) -> None:
        """Let go. The file stays and says that the receiver has gone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Watch:
    """A sender's side."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def gone(self) -> bool:
        """True once the receiver has closed or died; false while it lives or has not opened yet. About 2 µs."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                return False
        if not _try_lock(self._fd, fcntl.LOCK_SH):
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return os.fstat(self._fd).st_size > 0

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
