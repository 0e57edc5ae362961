"""The form of a file: a header that names key, length and checksum, then the content. Opens no file.

magic and version   8 bytes    "SRTKV" 0 0 1
key                32
length of content   8          little-endian
checksum           16          blake2b of all before it and of the content
"""

from __future__ import annotations

from hashlib import blake2b

from srtkit.spec.kv_store import KEY_BYTES, Blob

MAGIC = b"SRTKV\0\0\1"
_SUM_BYTES = 16
HEADER_BYTES = len(MAGIC) + KEY_BYTES + 8 + _SUM_BYTES


def header(key: bytes, content: Blob) -> bytes:
    """What stands before the content."""
    named = MAGIC + key + memoryview(content).nbytes.to_bytes(8, "little")
    return named + _checksum(named, content)


def content_of(key: bytes, file: bytes) -> bytes | None:
    """The content of a file's bytes; None unless every byte is as it was written for this key."""
    content = memoryview(file)[HEADER_BYTES:]
    return bytes(content) if len(file) >= HEADER_BYTES and file[:HEADER_BYTES] == header(key, content) else None


def _checksum(named: bytes, content: Blob) -> bytes:
    digest = blake2b(named, digest_size=_SUM_BYTES)
    digest.update(content)
    return digest.digest()
