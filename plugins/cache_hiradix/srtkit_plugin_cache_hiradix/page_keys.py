"""Names of pages: 32 bytes that stand for a page's content and all that comes before it, in every process alike.

The same names index host memory and storage. Knows tokens, namespaces and spans; no page numbers.
"""

from __future__ import annotations

from hashlib import blake2b

from srtkit.spec.kv_store import KEY_BYTES
from srtkit.spec.prefix_cache import CacheKey

FORM = 2  # of what is stored under a name: a page's layers in order, the planes of each in order


class PageKeys:
    """Names for one model, layout and page size: all of that is in `identity`."""

    def __init__(self, identity: bytes, page_size: int) -> None:
        self._identity = blake2b(b"%d %d " % (FORM, page_size) + identity, digest_size=KEY_BYTES).digest()
        self._page_size = page_size

    def extended(self, known: list[bytes], key: CacheKey, pages: int) -> list[bytes]:
        """The names of a key's first `pages` whole pages, of which the first are `known`."""
        names = known[:pages]
        last = names[-1] if names else _digest(self._identity, key.namespace)
        ids, size = key.ids.astype("<i4", copy=False), self._page_size
        for start in range(len(names) * size, pages * size, size):
            last = _digest(last, self._content(ids[start : start + size].tobytes(), key, start))
            names.append(last)
        return names

    def _content(self, page: bytes, key: CacheKey, start: int) -> bytes:
        """What stands in a page: its tokens, and instead of some of them the spans that cover them."""
        parts = [page]
        for first, stop, digest in sorted(key.spans):
            low, high = max(first - start, 0), min(stop - start, self._page_size)
            if low < high:
                page = page[: 4 * low] + bytes(4 * (high - low)) + page[4 * high :]
                parts[0] = page
                parts.append(b"%d %d %d " % (first - start, stop - start, len(digest)) + digest)
        return b"".join(parts)


def of_component(name: bytes, component: str, first: bool) -> bytes:
    """The name of a component's share of a page; the first one's is the page's own."""
    return name if first else _digest(name, component.encode())


def _digest(before: bytes, content: bytes) -> bytes:
    return blake2b(before + content, digest_size=KEY_BYTES).digest()
