"""Cuts a step into the kernel's pieces: which query tokens meet which stored tokens. numpy only.

A row is one piece. Rows that share leading pages get one more piece for all of them, and few rows with
long contexts are split, so that every thread has work; what a token gets from several pieces is merged.
The cut decides speed, never the result. Knows rows and page ids; no tensors, no layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from srtkit.spec.attention import PrefixGroups
from srtkit.spec.step_plan import Ints

Table = npt.NDArray[np.int32]

SEES_ALL = 1 << 30
WORTH_A_GROUP = 256
"""Stored tokens that need not be read again: from so many on a shared prefix pays for the merge."""
SEGMENT = 128
"""Splitting a row leaves at least so many stored tokens to each part."""
ITEMS_PER_THREAD = 4
"""With fewer work items than this a thread may wait long for the last one of another."""


@dataclass(frozen=True)
class Shape:
    """What the cut must know of kernel and machine: `block` query tokens and a KV head are one work item.

    `partials`: how many tokens' partial results the workspace holds, three times a step's tokens.
    """

    kv_heads: int
    block: int
    window: int
    causal: bool
    threads: int
    partials: int


@dataclass(frozen=True)
class Work:
    """A step's pieces [n, 8] and merges [n, 3] as the kernel reads them; counts are of all and of the leading rows."""

    pieces: Table
    merges: Table
    ids: Table
    n_pieces: tuple[int, int]
    n_items: tuple[int, int]
    n_merges: tuple[int, int]


@dataclass(frozen=True)
class Shared:
    """Rows [row, row + members) have their first `pages` pages in common, and all their queries see them."""

    row: int
    members: int
    pages: int


class StepCut:
    """The rows of one step: query tokens and stored tokens [R], page ids [R, max_pages]. Used once."""

    def __init__(self, n_query: Ints, context: Ints, pages: Ints, page_tokens: int, shape: Shape) -> None:
        self.shape = shape
        self.pages = pages
        self.page_tokens = page_tokens
        self.n_query: list[int] = n_query.tolist()
        self.context: list[int] = context.tolist()
        self.token: list[int] = (np.cumsum(n_query) - n_query).tolist()
        self.cached_pages: Ints = (context - n_query) // page_tokens
        self._pieces: list[tuple[int, ...]] = []
        self._merges: list[tuple[int, int, int]] = []
        self._ids: list[int] = []
        self._items = 0
        self._partials = 0

    def work(self, leading: int, share: bool, hint: PrefixGroups | None) -> Work:
        """All pieces; those of the `leading` rows stand first. `share`: look for common prefixes."""
        share = share and not self.shape.window
        self._section(0, leading, self._groups(0, leading, hint) if share else ())
        first = self._counts()
        rows = len(self.n_query)
        self._section(leading, rows, self._groups(leading, rows, None) if share else ())
        every = self._counts()
        n_pieces, n_items, n_merges = zip(every, first, strict=True)
        return Work(
            np.array(self._pieces, np.int32).reshape(-1, 8),
            np.array(self._merges, np.int32).reshape(-1, 3),
            np.array(self._ids, np.int32),
            n_pieces,
            n_items,
            n_merges,
        )

    def _counts(self) -> tuple[int, int, int]:
        return len(self._pieces), self._items, len(self._merges)

    def _section(self, begin: int, end: int, groups: Iterator[Shared] | tuple[()]) -> None:
        """The pieces of rows [begin, end), longest first as far as they are known to be long."""
        partials: dict[int, list[int]] = {}  # row → ids of its first token's partial results
        shared: dict[int, int] = {}
        for group in groups:
            n_shared, members = group.pages * self.page_tokens, range(group.row, group.row + group.members)
            if n_shared * (group.members - 1) < WORTH_A_GROUP:
                continue
            first = self.token[group.row]
            last = self.token[members[-1]] + self.n_query[members[-1]]
            spans = self._spans(0, n_shared, last - first, self._segments([last - first]))
            bases = [self._piece(first, last - first, group.row, span, SEES_ALL, partial=True) for span in spans]
            for row in members:
                shared[row] = n_shared
                partials[row] = [base + self.token[row] - first for base in bases]
        segments = self._segments(self.n_query[begin:end])
        for row in range(begin, end):
            if self.n_query[row]:
                self._row(row, shared.get(row, 0), segments, partials.get(row, []))

    def _segments(self, n_query: Sequence[int]) -> int:
        """In how many parts the stored tokens of pieces with so many queries are split to keep all threads busy."""
        items = sum(-(-n // self.shape.block) for n in n_query) * self.shape.kv_heads
        return -(-ITEMS_PER_THREAD * self.shape.threads // items) if items else 1

    def _spans(self, begin: int, end: int, n_query: int, segments: int) -> list[tuple[int, int]]:
        """Stored tokens [begin, end) in at most so many parts."""
        segments = min(segments, max(1, (end - begin) // SEGMENT))
        if self._partials + segments * n_query > self.shape.partials // 3:
            segments = 1  # two thirds are kept for a shared and an own part of every token
        bounds = [begin + (end - begin) * i // segments for i in range(segments + 1)]
        return list(pairwise(bounds))

    def _row(self, row: int, shared: int, segments: int, partials: list[int]) -> None:
        n_query, context = self.n_query[row], self.context[row]
        start = context - n_query
        position = start if self.shape.causal else SEES_ALL
        begin = max(shared, start - self.shape.window + 1) if self.shape.window else shared
        spans = self._spans(begin, context, n_query, segments)
        partial = len(spans) > 1 or bool(partials)
        for span in spans:
            partials = [*partials, self._piece(self.token[row], n_query, row, span, position, partial=partial)]
        if not partial:
            return
        for i in range(n_query):
            first = len(self._ids)
            self._ids += [base + i for base in partials]
            self._merges.append((self.token[row] + i, first, len(self._ids)))

    def _piece(self, token: int, n: int, row: int, span: tuple[int, int], position: int, *, partial: bool) -> int:
        """Add a piece; the id of its first token's partial result, -1 for none."""
        base = self._partials if partial else -1
        self._pieces.append((token, n, row, *span, position, base, self._items))
        self._items += -(-n // self.shape.block) * self.shape.kv_heads
        self._partials += n if partial else 0
        return base

    def _groups(self, begin: int, end: int, hint: PrefixGroups | None) -> Iterator[Shared]:
        if hint is None:
            yield from self._find_groups(begin, end)
            return
        for row, members, pages in zip(hint.first_row, hint.members, hint.pages, strict=True):
            if members > 1:
                seen = int(self.cached_pages[row : row + members].min())
                yield Shared(int(row), int(members), min(int(pages), seen))

    def _find_groups(self, begin: int, end: int) -> Iterator[Shared]:
        """Runs of adjacent rows with common leading pages; a row joins while that saves more than it costs."""
        if end - begin < 2:
            return
        cached = self.cached_pages[begin:end]
        differ = self.pages[begin : end - 1] != self.pages[begin + 1 : end]
        differ = np.concatenate((differ, np.ones((end - begin - 1, 1), bool)), 1)
        common: list[int] = np.minimum(differ.argmax(1), np.minimum(cached[:-1], cached[1:])).tolist()
        row = begin
        while row < end:
            members, pages = 1, int(self.cached_pages[row])
            while row + members < end:
                fewer = min(pages, common[row + members - 1 - begin])
                if fewer * members <= pages * (members - 1):
                    break
                members, pages = members + 1, fewer
            if members > 1:
                yield Shared(row, members, pages)
            row += members
