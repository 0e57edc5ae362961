"""The hash of a page, by which a router finds out who has the beginning of a prompt. Needs nothing but numpy.

The caches make the same ones in their own way: a test holds them against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike

Span = tuple[int, int, bytes]


def page_hashes(ids: ArrayLike, page_size: int, namespace: bytes = b"", spans: Sequence[Span] = ()) -> list[int]:
    """Of every whole page of a prompt: 64 bits that stand for the page and all that is before it, never 0.

    `ids` int [n]; `namespace` is the request's `cache_salt` in UTF-8; `spans` (start, stop, digest) replace ids, as in
    `srtkit.spec.prefix_cache.CacheKey`.
    """
    tokens = np.array(ids, "<i4")
    digests: dict[int, bytes] = {}
    for start, stop, digest in sorted(spans):
        end = min(stop, len(tokens))
        tokens[start:end] = np.arange(-1, start - end - 1, -1)
        digests.setdefault(start // page_size, b"")
        digests[start // page_size] += _marked(digest + (stop - start).to_bytes(4, "little"))
    before = _number(namespace)
    hashes = []
    for page in range(len(tokens) // page_size):
        own = tokens[page * page_size : (page + 1) * page_size].tobytes()
        before = _number(before.to_bytes(8, "little") + own + digests.get(page, b"")) or 1
        hashes.append(before)
    return hashes


def _marked(identity: bytes) -> bytes:
    return len(identity).to_bytes(4, "little") + identity


def _number(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
