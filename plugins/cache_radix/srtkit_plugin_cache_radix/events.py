"""What changed in the tree, for cache-aware routing: chained 64-bit content hashes of whole pages.

A page's hash covers its whole prefix and namespace and is the same in every process. Hashing is work per
page, so a cache without listeners has no `EventLog` at all.
"""

from __future__ import annotations

from hashlib import blake2b

from srtkit.spec.prefix_cache import CacheEvent
from srtkit_plugin_cache_radix.keys import Segment
from srtkit_plugin_cache_radix.tree import Node


class EventLog:
    """Collects events until they are taken."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._events: list[CacheEvent] = []

    def stored(self, node: Node) -> None:
        """A new node: hash its pages, keep the hashes on it for the day it goes."""
        node.hashes = self._hashes(node)
        self._events.append(CacheEvent("stored", node.hashes, _before(node), _namespace(node)))

    def removed(self, node: Node, n_pages: int) -> None:
        """The last `n_pages` of a node are about to go."""
        keep = len(node.hashes) - n_pages
        parent = node.hashes[keep - 1] if keep else _before(node)
        self._events.append(CacheEvent("removed", node.hashes[keep:], parent, _namespace(node)))

    def cleared(self) -> None:
        """All is forgotten."""
        self._events.append(CacheEvent("cleared"))

    def take(self) -> list[CacheEvent]:
        """All events since the last call."""
        events, self._events = self._events, []
        return events

    def _hashes(self, node: Node) -> tuple[int, ...]:
        before = _before(node) or int.from_bytes(blake2b(_namespace(node), digest_size=8).digest(), "little")
        hashes = []
        for start in range(0, node.n_tokens, self._page_size):
            before = _chained(before, node.segment.tail(start).head(self._page_size))
            hashes.append(before)
        return tuple(hashes)


def _chained(before: int, page: Segment) -> int:
    """Hash of a page after the hash of what comes before it; never 0, which stands for "nothing before"."""
    digest = blake2b(before.to_bytes(8, "little"), digest_size=8)
    digest.update(page.ids.astype("<i4", copy=False).tobytes())
    for _, identity in page.marks:
        digest.update(len(identity).to_bytes(4, "little"))
        digest.update(identity)
    return int.from_bytes(digest.digest(), "little") or 1


def _before(node: Node) -> int:
    """Hash of the last page before the node, 0 if it begins the prefix."""
    assert node.parent is not None
    return node.parent.hashes[-1] if node.parent.hashes else 0


def _namespace(node: Node) -> bytes:
    while node.parent is not None:
        node = node.parent
    assert isinstance(node.key, bytes)
    return node.key
