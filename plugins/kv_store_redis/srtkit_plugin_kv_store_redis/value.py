"""The form of a value: version and checksum over key and content, then the content. Knows no server.

The database may hold anything under a key of ours: another version's value, another program's, a damaged one.
"""

from __future__ import annotations

from hashlib import blake2b

from srtkit.spec.kv_store import Blob

VERSION = b"SRK1"
_SUM_BYTES = 16
HEADER_BYTES = len(VERSION) + _SUM_BYTES


def value_of(key: bytes, content: Blob) -> bytes:
    """What is stored."""
    return b"".join((_header(key, content), content))


def content_of(key: bytes, value: bytes) -> bytes | None:
    """The content; None for a value that was not made of this key and content by this version."""
    content = memoryview(value)[HEADER_BYTES:]
    return bytes(content) if value[:HEADER_BYTES] == _header(key, content) else None


def _header(key: bytes, content: Blob) -> bytes:
    digest = blake2b(VERSION + key, digest_size=_SUM_BYTES)
    digest.update(content)
    return VERSION + digest.digest()
