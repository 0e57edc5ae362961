"""Segments: runs of a key that compare exactly, whole arrays at a time. Knows no tree.

A span (image, prompt embedding) replaces the ids of its positions by -1, -2, -3 … (its own offsets,
which no token id can be) plus one mark with its identity at its first position. So where ids agree
spans begin at the same places, and two keys agree as far as their ids and their marks do.
"""

from __future__ import annotations

import numpy as np

from srtkit.spec.prefix_cache import CacheKey
from srtkit.spec.step_plan import Ints

Mark = tuple[int, bytes]
"""First position of a span, counted from the segment's, and the span's identity: digest and length."""

PageId = bytes | tuple[bytes, tuple[bytes, ...]]
"""What the tokens of one page are, hashable: id bytes, with the identities of the spans that begin in it."""


class Segment:
    """A run of token identities: `ids` int32 [n], and a mark for every span that begins in it.

    A run may begin inside a span: what stands before it in the tree has the mark.
    """

    __slots__ = ("ids", "marks")

    def __init__(self, ids: Ints, marks: tuple[Mark, ...] = ()) -> None:
        self.ids = ids
        self.marks = marks

    def common(self, other: Segment) -> int:
        """How many leading tokens both have."""
        n = min(len(self.ids), len(other.ids))
        if n == 0:
            return 0
        differs = self.ids[:n] != other.ids[:n]
        first = int(differs.argmax())  # of the first True, or 0
        if differs[first]:
            n = first
        if not self.marks:
            return n
        for (at, mine), (_, theirs) in zip(self.marks, other.marks, strict=False):
            if at >= n:
                break
            if mine != theirs:
                return at
        return n

    def head(self, at: int) -> Segment:
        """The first `at` tokens; a view."""
        marks = tuple(mark for mark in self.marks if mark[0] < at) if self.marks else ()
        return Segment(self.ids[:at], marks)

    def tail(self, at: int) -> Segment:
        """All but the first `at` tokens; a view."""
        marks = tuple((one - at, identity) for one, identity in self.marks if one >= at) if self.marks else ()
        return Segment(self.ids[at:], marks)

    def copy(self) -> Segment:
        """The same in memory of its own, read-only."""
        ids = self.ids.copy()
        ids.flags.writeable = False
        return Segment(ids, self.marks)

    def page_id(self, page_size: int) -> PageId:
        """The identity of the first `page_size` tokens."""
        page = self.ids[:page_size].tobytes()
        if not self.marks:
            return page
        identities = tuple(identity for position, identity in self.marks if position < page_size)
        return (page, identities) if identities else page


def segment_of(key: CacheKey, length: int) -> Segment:
    """The first `length` tokens of a key; a view when it has no spans."""
    ids = key.ids[:length]
    if not key.spans:
        return Segment(ids)
    ids = ids.copy()
    marks: list[Mark] = []
    after = 0
    for start, stop, digest in sorted(key.spans):
        assert after <= start < stop, "spans of a key are empty or overlap"
        after = stop
        if start < length:
            end = min(stop, length)
            ids[start:end] = np.arange(-1, start - end - 1, -1)
            marks.append((start, digest + (stop - start).to_bytes(4, "little")))
    return Segment(ids, tuple(marks))
