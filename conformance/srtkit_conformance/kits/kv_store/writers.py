"""Processes that write into a store and may be killed at any point. They never outlive their check."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from pydantic import BaseModel

from srtkit_conformance.check import Failed
from srtkit_conformance.kits.kv_store.blobs import blob, key
from srtkit_conformance.kits.kv_store.places import build
from srtkit_conformance.target import Target

LIFE_SECONDS = 50
CRASH_BYTES = 1 << 18
CRASH_KEYS = 16

# Forked, so that a wrong plugin that exists only in this process reaches it.
_PROCESSES = multiprocessing.get_context("fork")


@contextmanager
def writer(target: Target, options: BaseModel) -> Iterator[Connection]:
    """A process that puts blob after blob and says each number before; killed when the context ends."""
    ours, theirs = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_write, args=(target, options, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(LIFE_SECONDS / 2):
            raise Failed("a process with the store does not come up")
        yield ours
    finally:
        process.kill()
        process.join(LIFE_SECONDS)
        ours.close()


def _write(target: Target, options: BaseModel, pipe: Connection) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIFE_SECONDS)  # should its parent be killed first
    store = build(target, options)
    contents = [
        blob(number, CRASH_BYTES) for number in range(CRASH_KEYS)
    ]  # beforehand: it is to be killed while it puts
    while True:
        for number, content in enumerate(contents):
            pipe.send(number)
            store.put([(key(number), content)], 10.0)
