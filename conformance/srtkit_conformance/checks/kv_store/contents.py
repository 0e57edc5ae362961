"""What comes back: the bytes that were put, under their own key, or a miss."""

from __future__ import annotations

from srtkit.spec.kv_store import KEY_BYTES, Reply
from srtkit_conformance.check import Figures, check, expect
from srtkit_conformance.kits.kv_store.blobs import SECONDS, blob, get, key, put
from srtkit_conformance.kits.kv_store.places import opened
from srtkit_conformance.target import Target

SIZES = (1, 16, 4095, 4096, 70_001, 3 << 20)
ODD_KEYS = (
    *(bytes([number]) * KEY_BYTES for number in (0, 1, 10, 13, 32, 37, 42, 46, 47, 92, 255)),
    *(bytes(KEY_BYTES - 1 - at) + b"\1" + bytes(at) for at in range(KEY_BYTES)),
)
"""Keys of bytes that mean something to file systems and protocols, and keys that differ in one byte."""


@check(
    "kv_store.contents",
    level=1,
    clause="kv_store/1.0: get gives the contents that were put under the key",
    explain="Contents are cut, padded, or read as text. A key is 32 arbitrary bytes.",
)
def contents(target: Target) -> None:
    with opened(target) as store:
        for number, size in enumerate(SIZES):
            put(store, number, size=size)
        for number, size in enumerate(SIZES):
            expect(get(store, number) == (blob(number, size),), f"{size} bytes come back as others", limit=size)


@check(
    "kv_store.keys",
    level=1,
    clause="kv_store/1.0: it never gives bytes that were not put under that very key",
    explain="Keys are shortened, escaped or compared as text, so that two of them are one.",
)
def keys(target: Target) -> Figures:
    with opened(target) as store:
        for number, odd in enumerate(ODD_KEYS):
            before = store.get([odd], SECONDS)
            expect(before == Reply((None,)), "a key finds another key's content", observed=odd.hex())
            store.put([(odd, blob(number, 100))], SECONDS)
        found = store.get(ODD_KEYS, SECONDS).values
        wanted = tuple(blob(number, 100) for number in range(len(ODD_KEYS)))
        expect(found == wanted, "keys that differ have one content")
    return {"keys": len(ODD_KEYS)}


@check(
    "kv_store.batches",
    level=1,
    clause="kv_store/1.0: one value for each key of the call, in its order",
    explain="A batch answers in the order of the storage, leaves misses out, or answers a key that comes twice once.",
)
def batches(target: Target) -> None:
    with opened(target) as store:
        put(store, *range(40))
        asked = [5, 99, 5, 0, 77, 39, 98, *range(30), 99]
        wanted = tuple(blob(number, 1000) if number < 40 else None for number in asked)
        expect(get(store, *asked) == wanted, "a batch is not answered key by key")
        there = store.exists([key(number) for number in asked], SECONDS)
        expect(there.values == tuple(number < 40 for number in asked), "exists differs from get", observed=there)
        for call in (store.get, store.exists):
            expect(call([], SECONDS) == Reply(()), "an empty batch is not answered with an empty one")
        expect(store.put([], SECONDS) == Reply(()), "an empty batch is not answered with an empty one")


@check(
    "kv_store.misses",
    level=1,
    clause="kv_store/1.0: a miss is an answer",
    explain="A key that was never put is an error, empty bytes, or an exception.",
)
def misses(target: Target) -> None:
    with opened(target) as store:
        reply = store.get([key(1), key(2)], SECONDS)
        expect(reply == Reply((None, None)), "an empty store does not answer with misses alone", observed=reply)
        expect(store.exists([key(1)], SECONDS) == Reply((False,)), "an empty store says that a key exists")


@check(
    "kv_store.again",
    level=1,
    clause="kv_store/1.0: whether each is kept now, by this call or an earlier one",
    explain="A second put of a key fails, or mixes both contents. It may keep the first or the second.",
)
def again(target: Target) -> None:
    with opened(target) as store:
        put(store, 1)
        put(store, 1)
        reply = store.put([(key(1), blob(2, 500)), (key(2), blob(2, 10)), (key(2), blob(2, 10))], SECONDS)
        expect(reply == Reply((True, True, True)), "a key that is there cannot be put again", observed=reply)
        first, second = get(store, 1, 2)
        expect(first in (blob(1, 1000), blob(2, 500)), "a key has neither of the contents that were put")
        expect(second == blob(2, 10), "a key that came twice in one call has another content")


@check(
    "kv_store.own_copy",
    level=1,
    clause="kv_store/1.0: the contents may be reused when put returns",
    explain="The store keeps the caller's buffer, or writes it later: the next page is in it by then.",
)
def own_copy(target: Target) -> None:
    with opened(target) as store:
        buffer = bytearray(blob(1, 300_000))
        for number in range(1, 4):
            buffer[:] = blob(number, len(buffer))
            store.put([(key(number), memoryview(buffer))], SECONDS)
        buffer[:] = bytes(len(buffer))
        expect(
            get(store, 1, 2, 3) == tuple(blob(number, len(buffer)) for number in (1, 2, 3)),
            "contents changed with the caller's buffer",
        )
