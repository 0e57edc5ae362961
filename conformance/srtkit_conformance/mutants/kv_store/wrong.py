"""Stores with one fault each."""

from __future__ import annotations

import time

from srtkit.spec.kv_store import KEY_BYTES, Blob, KVStore, KVStoreBuild, Reply
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.kv_store.wrapping import Blobs, InMemory, Keys, PlainFiles, Wrapped, another, around


class PadsToBlocks(Wrapped):
    """Contents come back in whole blocks of 16 bytes."""

    def get(self, keys: Keys, seconds: float) -> Reply[bytes | None]:
        reply = self.inner.get(keys, seconds)
        return Reply(tuple(one and one + bytes(-len(one) % 16) for one in reply.values), reply.error)


class ShortKeys(Wrapped):
    """Uses the first half of a key."""

    def put(self, blobs: Blobs, seconds: float) -> Reply[bool]:
        return self.inner.put([(_short(key), content) for key, content in blobs], seconds)

    def get(self, keys: Keys, seconds: float) -> Reply[bytes | None]:
        return self.inner.get([_short(key) for key in keys], seconds)


def _short(key: bytes) -> bytes:
    return key[: KEY_BYTES // 2].ljust(KEY_BYTES, b"\0")


class EachKeyOnce(Wrapped):
    """A batch asks for every key once, and answers so."""

    def get(self, keys: Keys, seconds: float) -> Reply[bytes | None]:
        return self.inner.get(list(dict.fromkeys(keys)), seconds)


class MissIsEmpty(Wrapped):
    """A miss is empty content."""

    def get(self, keys: Keys, seconds: float) -> Reply[bytes | None]:
        reply = self.inner.get(keys, seconds)
        return Reply(tuple(one or b"" for one in reply.values), reply.error)


class OnceOnly(Wrapped):
    """A key that is there cannot be put again."""

    def put(self, blobs: Blobs, seconds: float) -> Reply[bool]:
        there = self.inner.exists([key for key, _ in blobs], seconds).values
        kept = self.inner.put(blobs, seconds).values
        return Reply(tuple(new and not old for new, old in zip(kept, there, strict=True)))


class KeepsTheBuffer(InMemory):
    """Keeps what it is given, not a copy."""

    def keep(self, key: bytes, content: Blob) -> None:
        self.kept[key] = content


class NoTime(Wrapped):
    """Gives every blob of a batch all the seconds of the call."""

    def get(self, keys: Keys, seconds: float) -> Reply[bytes | None]:
        time.sleep(0.01 * len(keys) if len(keys) > 100 else 0)
        return Reply(tuple(self.inner.get([key], 1.0).values[0] for key in keys))


class HidesTimeOuts(Wrapped):
    """What was not done in time is a miss like others, without an error."""

    def get(self, keys: Keys, seconds: float) -> Reply[bytes | None]:
        return Reply(self.inner.get(keys, seconds).values)

    def put(self, blobs: Blobs, seconds: float) -> Reply[bool]:
        return Reply(self.inner.put(blobs, seconds).values)


class RaisesWhenClosed(Wrapped):
    """A call after close is an error of the caller's."""

    def __init__(self, inner: KVStore) -> None:
        super().__init__(inner)
        self.closed = False

    def close(self) -> None:
        self.closed = True
        self.inner.close()

    def get(self, keys: Keys, seconds: float) -> Reply[bytes | None]:
        if self.closed:
            raise ValueError("closed")
        return self.inner.get(keys, seconds)


class OneBuffer(Wrapped):
    """Reads through one buffer that all threads share."""

    def __init__(self, inner: KVStore) -> None:
        super().__init__(inner)
        self.buffer = bytearray()

    def get(self, keys: Keys, seconds: float) -> Reply[bytes | None]:
        values = []
        for content in self.inner.get(keys, seconds).values:
            self.buffer[:] = content or b""
            time.sleep(0)
            values.append(None if content is None else bytes(self.buffer))
        return Reply(tuple(values))


class WritesAtTheEnd(Wrapped):
    """Keeps in memory what is written when the store is closed."""

    def __init__(self, inner: KVStore) -> None:
        super().__init__(inner)
        self.waiting = InMemory(KVStoreBuild(None))  # type: ignore[arg-type]

    def put(self, blobs: Blobs, seconds: float) -> Reply[bool]:
        return self.waiting.put(blobs, seconds)

    def get(self, keys: Keys, seconds: float) -> Reply[bytes | None]:
        reply = self.inner.get(keys, seconds)
        values = zip(self.waiting.get(keys, seconds).values, reply.values, strict=True)
        return Reply(tuple(own if own is not None else kept for own, kept in values), reply.error)

    def exists(self, keys: Keys, seconds: float) -> Reply[bool]:
        reply = self.get(keys, seconds)
        return Reply(tuple(one is not None for one in reply.values), reply.error)

    def close(self) -> None:
        self.inner.put(list(self.waiting.kept.items()), 30.0)
        self.waiting.close()
        self.inner.close()


class RemembersMisses(Wrapped):
    """What was not there once is not looked for again."""

    def __init__(self, inner: KVStore) -> None:
        super().__init__(inner)
        self.missing: set[bytes] = set()

    def put(self, blobs: Blobs, seconds: float) -> Reply[bool]:
        self.missing -= {key for key, _ in blobs}
        return self.inner.put(blobs, seconds)

    def get(self, keys: Keys, seconds: float) -> Reply[bytes | None]:
        reply = self.inner.get(keys, seconds)
        values = tuple(None if key in self.missing else one for key, one in zip(keys, reply.values, strict=True))
        self.missing |= {key for key, one in zip(keys, values, strict=True) if one is None}
        return Reply(values, reply.error)


class InPlace(PlainFiles):
    """Writes a blob where it is read from."""

    def keep(self, key: bytes, content: Blob) -> None:
        view = memoryview(content)
        with (self.folder / key.hex()).open("wb", buffering=0) as file:
            for start in range(0, view.nbytes, 1 << 14):
                file.write(view[start : start + (1 << 14)])
                time.sleep(0.001 if view.nbytes > 1 << 17 else 0)


padded = mutant(
    "kv_store.padded", of="files", sentence="Pads contents to whole blocks.", killed_by=("kv_store.contents",)
)(around(PadsToBlocks))
short_keys = mutant("kv_store.short_keys", of="files", sentence="Uses half of the key.", killed_by=("kv_store.keys",))(
    around(ShortKeys)
)
each_once = mutant(
    "kv_store.each_once", of="files", sentence="Answers equal keys of a batch once.", killed_by=("kv_store.batches",)
)(around(EachKeyOnce))
miss_is_empty = mutant(
    "kv_store.miss_is_empty", of="files", sentence="Gives empty bytes for a miss.", killed_by=("kv_store.misses",)
)(around(MissIsEmpty))
once_only = mutant(
    "kv_store.once_only", of="files", sentence="Refuses a key that it has.", killed_by=("kv_store.again",)
)(around(OnceOnly))
keeps_the_buffer = mutant(
    "kv_store.keeps_the_buffer", of="files", sentence="Keeps the caller's buffer.", killed_by=("kv_store.own_copy",)
)(another(KeepsTheBuffer))
no_time = mutant("kv_store.no_time", of="files", sentence="Overruns its time.", killed_by=("kv_store.in_time",))(
    around(NoTime)
)
hides_time_outs = mutant(
    "kv_store.hides_time_outs",
    of="files",
    sentence="Does not say that the time was over.",
    killed_by=("kv_store.in_time",),
    note="the other half of that check",
)(around(HidesTimeOuts))
raises_when_closed = mutant(
    "kv_store.raises_when_closed", of="files", sentence="Raises after close.", killed_by=("kv_store.close",)
)(around(RaisesWhenClosed))
one_buffer = mutant(
    "kv_store.one_buffer", of="files", sentence="Threads share a buffer.", killed_by=("kv_store.threads",)
)(around(OneBuffer))
writes_at_the_end = mutant(
    "kv_store.writes_at_the_end", of="files", sentence="Writes when closed.", killed_by=("kv_store.persistent",)
)(around(WritesAtTheEnd))
remembers_misses = mutant(
    "kv_store.remembers_misses", of="files", sentence="Takes a miss for final.", killed_by=("kv_store.shared",)
)(around(RemembersMisses))
no_checksum = mutant(
    "kv_store.no_checksum", of="files", sentence="Takes a file for sound.", killed_by=("kv_store.damaged",)
)(another(PlainFiles))
in_place = mutant("kv_store.in_place", of="files", sentence="Writes in place.", killed_by=("kv_store.killed",))(
    another(InPlace)
)
