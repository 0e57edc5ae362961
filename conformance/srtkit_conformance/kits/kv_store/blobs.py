"""Keys and contents that can be told apart, each a function of its number."""

from __future__ import annotations

from hashlib import blake2b

from srtkit.spec.kv_store import KEY_BYTES, KVStore, Reply
from srtkit_conformance.check import expect

SECONDS = 30.0
"""Given to calls that are expected to do all of their work."""


def key(number: int) -> bytes:
    """A key as caches make them."""
    return blake2b(number.to_bytes(8, "little"), digest_size=KEY_BYTES).digest()


def blob(number: int, size: int) -> bytes:
    """Content that no other number has; empty for size 0."""
    pattern = blake2b(number.to_bytes(8, "little"), digest_size=61).digest()
    return (pattern * (size // len(pattern) + 1))[:size]


def put(store: KVStore, *numbers: int, size: int = 1000) -> None:
    """Put blobs, which must be kept."""
    reply = store.put([(key(number), blob(number, size)) for number in numbers], SECONDS)
    expect(reply == Reply((True,) * len(numbers)), "put does not keep what there is room for", observed=reply)


def get(store: KVStore, *numbers: int) -> tuple[bytes | None, ...]:
    """Contents by number."""
    reply = store.get([key(number) for number in numbers], SECONDS)
    expect(len(reply.values) == len(numbers), "get answers for other keys than asked", observed=len(reply.values))
    return reply.values
