"""Rows that share their leading pages, found from page ids: a page in the cache stands for its whole prefix.

The scheduler need not tell: equal ids in the host's page table are proof. What a recorded step reads of it lies at
fixed addresses and is sent only when it changes. Knows no kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.facts import Limits
from srtkit.spec.platform import Platform
from srtkit.spec.step_plan import Ints

MAX_GROUPS = 16
BLOCK_WORDS = 4
"""Of a block of members: the first one's place in the list of members, their number, the shared tokens, one's row.
The first line is of the whole step: how many blocks follow, into how many parts their keys are cut, rows of `rows`."""
MAX_PARTS = 64


@dataclass(frozen=True)
class Group:
    """Rows (int32 [members]) with the same first `pages` pages."""

    rows: Ints
    pages: int

    @property
    def saved(self) -> int:
        """Pages that need not be read again."""
        return (len(self.rows) - 1) * self.pages

    def holds(self, pages: Ints) -> bool:
        """Whether it is one of this table: the last shared page answers for those before it."""
        last = pages[self.rows, self.pages - 1]
        return bool((last == last[0]).all() and last[0])


def find(pages: Ints, worth: int) -> list[Group]:
    """Disjoint groups of rows of a page table [rows, width] that save `worth` pages or more each, at most `MAX_GROUPS`.

    Rows with the same first page are one group, of as many pages as all of them share. Page 0 is padding.
    """
    order = np.argsort(pages[:, 0], kind="stable").astype(np.int32)
    first = pages[order, 0]
    starts = np.flatnonzero(np.append(True, first[1:] != first[:-1]))
    ends = np.append(starts[1:], len(first))
    several = (ends - starts > 1) & (first[starts] != 0)
    groups = []
    for start, end in zip(starts[several].tolist(), ends[several].tolist(), strict=True):
        rows = order[start:end]
        mine = pages[rows]
        alike = (mine == mine[0]).all(axis=0) & (mine[0] != 0)
        groups.append(Group(rows, int(np.append(alike, False).argmin())))
    worthy = [one for one in groups if one.saved >= worth]
    return sorted(worthy, key=lambda one: one.saved, reverse=True)[:MAX_GROUPS]


class PrefixTable:
    """The groups of a step on the device, int32: `blocks` [lines, BLOCK_WORDS] of at most `members` rows each; their
    `rows` [rows]; and of every row the tokens to `skip`, because a block has them.

    `programs`: for one block of a part each, as many blocks as that are wanted. `room`: rows x parts at most.
    """

    def __init__(self, platform: Platform, limits: Limits, members: int, programs: int) -> None:
        self._members, self._programs = members, programs
        self.room = max(limits.max_rows, min(2 * members * programs, MAX_PARTS * limits.max_rows))
        self._lines = 1 + -(-limits.max_rows // members) + MAX_GROUPS
        words = self._lines * BLOCK_WORDS + 2 * limits.max_rows
        self._device = platform.allocate("workspace", (words,), torch.int32)
        self._host = [platform.host_buffer((words,), torch.int32) for _ in range(limits.depth + 1)]
        self._turn = 0
        self._first: Ints = np.empty(0, np.int32)
        self._groups: Sequence[Group] = ()
        self.blocks, self.rows, self.skip = self._cut(self._device)
        self._device.zero_()

    def update(self, pages: Ints, page_tokens: int, worth: int) -> None:
        """Take over a step's leading rows, of a page table [rows, width]; no wait. `worth` in pages, see `find`."""
        first = pages[:, 0]
        if np.array_equal(first, self._first) and all(one.holds(pages) for one in self._groups):
            return
        self._first = first.copy()
        before, self._groups = self._groups, find(pages, worth)
        if not before and not self._groups:
            return
        host = self._host[self._turn]
        self._turn = (self._turn + 1) % len(self._host)
        blocks, rows, skip = (part.numpy() for part in self._cut(host))
        host.zero_()
        block, place = 1, 0
        for group in self._groups:
            tokens, n = group.pages * page_tokens, len(group.rows)
            rows[place : place + n] = group.rows
            skip[group.rows] = tokens
            for begin in range(0, n, self._members):
                blocks[block] = (place + begin, min(self._members, n - begin), tokens, group.rows[0])
                block += 1
            place += n
        blocks[0, :3] = block - 1, self._parts(block - 1, len(first)), place
        self._device.copy_(host, non_blocking=True)

    def _parts(self, blocks: int, rows: int) -> int:
        """A power of two."""
        wanted = min(MAX_PARTS, self.room // rows, max(1, self._programs // max(1, blocks)))
        return 1 << (wanted.bit_length() - 1)

    def _cut(self, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        end = self._lines * BLOCK_WORDS
        rows, skip = words[end:].chunk(2)
        return words[:end].view(-1, BLOCK_WORDS), rows, skip
