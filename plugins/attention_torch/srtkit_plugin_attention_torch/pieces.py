"""Cuts a step into pieces: which queries meet which stored tokens in one kernel call. numpy only.

The cut decides speed, never the result: each query meets each token it may see in exactly one piece, and
a query with several pieces has them merged in order. Knows rows and page ids; no tensors, no layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from srtkit.spec.attention import PrefixGroups
from srtkit.spec.step_plan import Ints

Slots = npt.NDArray[np.int64]

FEW_QUERIES = 16
"""Up to so many queries of a row, one masked call over all of its keys is faster than two calls and a merge."""
SMALL_ROW = 128
"""Up to so many queries a row, fresh rows of equal length are worth the copy that one call for all needs."""
WORTH_A_GROUP = 1024
"""A merge costs about as much as reading so many tokens: a shared prefix must save more to be split off."""
PADDING = 1.5
"""Decode rows go into one call while padding to the longest multiplies the tokens by no more than this."""


class Place(Enum):
    """Where a piece stands among those of its queries."""

    ONLY = "only"
    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"


@dataclass(frozen=True)
class Piece:
    """Query tokens [token, token + rows * n_query) against the tokens stored at `slots`, `n_key` a row.

    `slots` [rows * n_key], row after row, page * page_tokens + offset. `lengths` [rows]: a row sees its
    first so many keys (the rest repeat one of its own, so that no kernel meets foreign memory); None: all.
    `fresh`: the keys are this step's own entries of the same tokens, causal. `mask_window`: not None for
    queries at the end of the keys that need an explicit causal mask, with that window (0: none).
    """

    token: int
    rows: int
    n_query: int
    n_key: int
    slots: Slots
    place: Place
    lengths: Ints | None = None
    fresh: bool = False
    mask_window: int | None = None

    @property
    def tokens(self) -> int:
        """How many query tokens it covers."""
        return self.rows * self.n_query


@dataclass(frozen=True)
class Group:
    """Rows [row, row + members) share their first `pages` pages."""

    row: int
    members: int
    pages: int


class StepCut:
    """The rows of one step, and how they are cut.

    `n_query`, `context` [R] and `pages` [R, max_pages] are the host copies of the batch; `budget` is the
    number of keys that one call of several decode rows may gather.
    """

    def __init__(self, n_query: Ints, context: Ints, pages: Ints, page_tokens: int, window: int, budget: int) -> None:
        self.pages = pages
        self.page_tokens = page_tokens
        self._first_slots: Slots = pages.astype(np.int64) * page_tokens
        self._offsets: Slots = np.arange(page_tokens)
        self.budget = budget
        self.n_query: list[int] = n_query.tolist()
        self.context: list[int] = context.tolist()
        self.start: list[int] = (context - n_query).tolist()
        self.token: list[int] = (np.cumsum(n_query) - n_query).tolist()
        self.cached_pages: Ints = (context - n_query) // page_tokens
        self.window = window if window and max(self.context, default=0) > window else 0

    def pieces(self, begin: int, end: int, hint: PrefixGroups | None = None) -> list[Piece]:
        """All pieces of rows [begin, end), in the order in which they are merged."""
        groups: Iterable[Group] = ()
        if not self.window:
            groups = self._find_groups(begin, end) if hint is None else self._given_groups(hint)
        found: list[Piece] = []
        shared = [0] * end  # tokens of a row that its group's piece covers
        for group in groups:
            if group.pages * self.page_tokens * (group.members - 1) < WORTH_A_GROUP:
                continue
            n_key = group.pages * self.page_tokens
            rows = range(group.row, group.row + group.members)
            n_query = sum(self.n_query[row] for row in rows)
            slots = self._slots(group.row, 0, n_key)
            found.append(Piece(self.token[group.row], 1, n_query, n_key, slots, Place.FIRST))
            for row in rows:
                shared[row] = n_key
        row = begin
        while row < end:
            if self.n_query[row] == 0:
                stop = row + 1
            elif self.n_query[row] == 1:
                stop = self._decode_run(row, end, shared)
                found.append(self._decode(row, stop, shared))
            else:
                stop = self._equal_fresh_run(row, end, shared)
                found += self._extend(row, stop, shared[row])
            row = stop
        return found

    def _first_key(self, row: int, shared: int) -> int:
        """The first token that the row's first query reads from its own pieces."""
        return max(shared, self.start[row] - self.window + 1) if self.window else shared

    def _decode_run(self, row: int, end: int, shared: Sequence[int]) -> int:
        """Where the run of decode rows that go into one call with `row` ends."""
        longest = total = self.context[row] - self._first_key(row, shared[row])
        stop = row + 1
        while stop < end and self.n_query[stop] == 1 and (shared[stop] > 0) == (shared[row] > 0):
            n_key = self.context[stop] - self._first_key(stop, shared[stop])
            padded = max(longest, n_key) * (stop - row + 1)
            if padded > self.budget or padded > PADDING * (total + n_key) + self.page_tokens:
                break
            longest, total, stop = max(longest, n_key), total + n_key, stop + 1
        return stop

    def _decode(self, row: int, stop: int, shared: Sequence[int]) -> Piece:
        """The one piece of decode rows [row, stop), padded to the longest with keys that a row owns."""
        place = Place.LAST if shared[row] else Place.ONLY
        if stop == row + 1:
            first = self._first_key(row, shared[row])
            n_key = self.context[row] - first
            return Piece(self.token[row], 1, 1, n_key, self._slots(row, first, self.context[row]), place)
        own = [self._slots(r, self._first_key(r, shared[r]), self.context[r]) for r in range(row, stop)]
        lengths = np.array([len(slots) for slots in own], np.int32)
        n_key = int(lengths.max())
        padded = np.empty((stop - row, n_key), np.int64)
        for target, slots in zip(padded, own, strict=True):
            target[: len(slots)] = slots
            target[len(slots) :] = slots[-1]
        ragged = lengths if lengths.min() < n_key else None
        return Piece(self.token[row], stop - row, 1, n_key, padded.reshape(-1), place, ragged)

    def _equal_fresh_run(self, row: int, end: int, shared: Sequence[int]) -> int:
        """Where the run of short rows ends that, like `row`, have only fresh tokens left to meet."""
        stop = row + 1
        n_query = self.n_query[row]
        if self.window or n_query > SMALL_ROW or self.start[row] != shared[row]:
            return stop
        while stop < end and self.n_query[stop] == n_query and self.start[stop] == shared[stop] == shared[row]:
            stop += 1
        return stop

    def _extend(self, row: int, stop: int, shared: int) -> list[Piece]:
        """The pieces of rows with several queries; more than one row only from `_equal_fresh_run`."""
        place = Place.LAST if shared else Place.ONLY
        start, context, n_query, token = self.start[row], self.context[row], self.n_query[row], self.token[row]
        rows = stop - row
        if start == shared and not self.window:
            slots = np.concatenate([self._slots(r, start, self.context[r]) for r in range(row, stop)])
            return [Piece(token, rows, n_query, n_query, slots, place, fresh=True)]
        if self.window or n_query <= FEW_QUERIES:
            first = self._first_key(row, shared)
            slots = self._slots(row, first, context)
            return [Piece(token, 1, n_query, context - first, slots, place, mask_window=self.window)]
        before = Place.MIDDLE if shared else Place.FIRST
        return [
            Piece(token, 1, n_query, start - shared, self._slots(row, shared, start), before),
            Piece(token, 1, n_query, n_query, self._slots(row, start, context), Place.LAST, fresh=True),
        ]

    def _slots(self, row: int, begin: int, end: int) -> Slots:
        """Slots of the row's tokens [begin, end)."""
        size = self.page_tokens
        first = self._first_slots[row, begin // size : -(-end // size), None]
        return (first + self._offsets).reshape(-1)[begin % size :][: end - begin]

    def _given_groups(self, hint: PrefixGroups) -> Iterable[Group]:
        """The hint, cut to what all queries of the members see."""
        for row, members, pages in zip(hint.first_row, hint.members, hint.pages, strict=True):
            if members > 1:
                seen = int(self.cached_pages[row : row + members].min())
                yield Group(int(row), int(members), min(int(pages), seen))

    def _find_groups(self, begin: int, end: int) -> Iterable[Group]:
        """Runs of adjacent rows that share leading pages. A page id stands for its whole prefix."""
        if end - begin < 2:
            return
        pages, cached = self.pages, self.cached_pages
        linked = pages[begin + 1 : end, 0] == pages[begin : end - 1, 0]
        linked &= np.minimum(cached[begin + 1 : end], cached[begin : end - 1]) > 0
        if not linked.any():
            return
        row = begin
        while row < end:
            members, shared = 1, int(cached[row])
            while row + members < end and linked[row + members - 1 - begin]:
                common = self._common_pages(row + members - 1, min(shared, int(cached[row + members])))
                if common * members < shared * (members - 1):
                    break  # the group saves more without this row
                members, shared = members + 1, common
            if members > 1:
                yield Group(row, members, shared)
            row += members

    def _common_pages(self, row: int, at_most: int) -> int:
        """How many of their first `at_most` pages a row and the next have in common."""
        differ = np.flatnonzero(self.pages[row, :at_most] != self.pages[row + 1, :at_most])
        return int(differ[0]) if len(differ) else at_most
