"""Time, and the end: calls come back when they must, whatever has become of the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from srtkit.spec.kv_store import KVStore, Reply
from srtkit_conformance.check import Failed, Figures, Informational, Outcome, check, expect
from srtkit_conformance.kits.kv_store.blobs import SECONDS, blob, get, key, put
from srtkit_conformance.kits.kv_store.places import build, opened, place
from srtkit_conformance.target import Target

AnyReply = Reply[bool] | Reply[bytes | None]

MANY, SIZE = 400, 50_000
GRACE = 2.0
"""Seconds that a call may take beyond its own: one blob, and a busy machine."""


@check(
    "kv_store.in_time",
    level=1,
    clause="kv_store/1.0: a call ends within its seconds and what one blob takes to move",
    explain="The time is looked at once, before the batch. What was not done is a miss, and the reply's error says so.",
)
def in_time(target: Target) -> Figures:
    with opened(target) as store:
        keys = [key(number) for number in range(MANY)]
        blobs = [(one, blob(number, SIZE)) for number, one in enumerate(keys)]
        took, kept = 0.0, set[bytes]()
        for seconds in (0.0, 0.005):
            calls: tuple[Callable[[float], AnyReply], ...] = (partial(store.put, blobs), partial(store.get, keys))
            for call in calls:
                started = time.monotonic()
                reply = call(seconds)
                took = max(took, time.monotonic() - started)
                expect(len(reply.values) == MANY, "a call that ran out of time leaves keys out")
                done = {one for one, value in zip(keys, reply.values, strict=True) if value}
                undone = (kept if call is calls[1] else set(keys)) - done  # what was never kept is a miss, not undone
                expect(bool(reply.error) or not undone, "the reply does not say that the time was over")
                kept |= done
        expect(took < GRACE, "a call takes longer than it may", observed=took, limit=GRACE)
        right = all(one in (None, blob(number, SIZE)) for number, one in enumerate(get(store, 0, 1, 2)))
        expect(right, "what ran out of time is there in part")
    return {"longest_seconds": round(took, 4)}


@check(
    "kv_store.close",
    level=1,
    clause="kv_store/1.0: close is idempotent; calls after it miss, with an error",
    explain="Calls after close raise, hang, or go on as if nothing had happened.",
)
def close(target: Target) -> None:
    with place(target) as options:
        store, other = build(target, options), build(target, options)
        put(store, 1)
        store.close()
        store.close()
        for what, reply in (
            ("put", _asked(lambda s: s.put([(key(2), b"2")], SECONDS), store)),
            ("get", _asked(lambda s: s.get([key(1)], SECONDS), store)),
            ("exists", _asked(lambda s: s.exists([key(1)], SECONDS), store)),
        ):
            expect(not any(reply.values) and bool(reply.error), f"{what} after close is no miss", observed=reply)
        put(other, 3)
        expect(get(other, 3) == (blob(3, 1000),), "closing one disturbs another that is open")
        other.close()


@check(
    "kv_store.damaged",
    level=1,
    clause="kv_store/1.0: what was kept and is damaged now is a miss",
    explain="A flipped bit, a file that was cut short, or another key's file is taken for the content. A checksum over "
    "key and content finds all of them.",
)
def damaged(target: Target) -> Outcome:
    with place(target) as options:
        folder = vars(options).get("path")
        if folder is None:
            return Informational("keeps nothing in a folder that its option `path` names")
        cases = 0
        for spoil in _spoilers(target):
            with closing(build(target, options)) as store:
                put(store, 1, 2)
            files = [file for file in Path(folder).rglob("*") if file.is_file()]
            contents = [file.read_bytes() for file in files]
            for file, content, other in zip(files, contents, contents[::-1], strict=True):
                file.write_bytes(spoil(content, other))
            with closing(build(target, options)) as store:
                found = get(store, 1, 2)
                right = all(one in (None, blob(number, 1000)) for number, one in zip((1, 2), found, strict=True))
                expect(right, "damaged content is taken for what was put", observed=spoil.__name__)
                put(store, 1, 2)
                expect(get(store, 1, 2) == (blob(1, 1000), blob(2, 1000)), "damage stays where it is for ever")
            cases += 1
    return {"cases": cases}


def _spoilers(target: Target) -> Iterator[Callable[[bytes, bytes], bytes]]:
    """Functions from a file's bytes, and another file's, to what shall stand there instead."""
    random = target.rng("damaged")
    for at in (*range(80), *random.integers(80, 1000, 20).tolist(), -1):

        def flipped(content: bytes, other: bytes, at: int = at) -> bytes:
            place = at % len(content) if content else 0
            return content[:place] + bytes([content[place] ^ 1 << at % 8]) + content[place + 1 :] if content else b""

        yield flipped

    def swapped(content: bytes, other: bytes) -> bytes:
        return other

    def longer(content: bytes, other: bytes) -> bytes:
        return content + b"\0"

    def emptied(content: bytes, other: bytes) -> bytes:
        return b""

    def cut(content: bytes, other: bytes) -> bytes:
        return content[: int(random.integers(len(content) + 1))]

    yield from (swapped, longer, emptied, cut, cut, cut)


def _asked(call: Callable[[KVStore], AnyReply], store: KVStore) -> AnyReply:
    try:
        return call(store)
    except Exception as error:
        raise Failed("a call after close raises", observed=f"{type(error).__name__}: {error}") from error
