"""Rows that share their leading pages, found from page ids: a page in the cache stands for its whole prefix.

The scheduler need not tell: equal ids in the host's page table are proof. What a recorded step reads of it lies at
fixed addresses and is sent only when it changes. Knows no kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.facts import Limits
from srtkit.spec.platform import Platform
from srtkit.spec.step_plan import Ints

MAX_GROUPS = 16
MAX_PARTS = 64
BLOCK_WORDS = 4
"""Of a block of members: the first one's place in the list of members, their number, the shared tokens, one's row."""
HEADER_WORDS = 3
"""Before the blocks: how many there are, into how many parts their keys are cut, how many rows are members."""


@dataclass(frozen=True)
class Group:
    """Rows (int32 [members]) with the same first `pages` pages."""

    rows: Ints
    pages: int

    def saved(self, block: int) -> int:
        """Pages that need not be read again when they are read once for every `block` rows."""
        return (len(self.rows) - -(-len(self.rows) // block)) * self.pages


def find(pages: Ints, worth: int, block: int) -> list[Group]:
    """Disjoint groups of rows of a page table [rows, width] that save `worth` pages or more each, at most `MAX_GROUPS`.

    Of rows that share some pages, and parts of them that share more, those are taken that save most. Page 0 is padding.
    That two rows have the same page at one place proves that they do at all places before it, and that both see all of
    it: the page that a row still writes to is nobody else's.
    """
    if len(pages) < 2:
        return []
    worthy = [one for one in _best(pages, np.arange(len(pages), dtype=np.int32), 0, block) if one.saved(block) >= worth]
    return sorted(worthy, key=lambda one: one.saved(block), reverse=True)[:MAX_GROUPS]


def _best(pages: Ints, rows: Ints, column: int, block: int) -> list[Group]:
    """The best groups of rows that are alike before `column`: families of the same page there, or families of them."""
    if column == pages.shape[1]:
        return []
    order = rows[np.argsort(pages[rows, column], kind="stable")]
    of = pages[order, column]
    starts = np.flatnonzero(np.append(True, of[1:] != of[:-1]))
    sizes = np.diff(np.append(starts, len(of)))
    several = np.flatnonzero((sizes > 1) & (of[starts] != 0))
    largest = several[np.argsort(-sizes[several], kind="stable")][:MAX_GROUPS]
    groups: list[Group] = []
    for start, size in zip(starts[largest].tolist(), sizes[largest].tolist(), strict=True):
        family = order[start : start + size]
        low, high = column, pages.shape[1]  # alike at low, and not at high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _alike(pages, family, middle) else (low, middle)
        whole = Group(family, high)
        parts = _best(pages, family, high, block) if size > 2 else []
        apart = sum(one.saved(block) for one in parts)
        groups += parts if apart > whole.saved(block) else [whole]
    return groups


def _alike(pages: Ints, rows: Ints, column: int) -> bool:
    of = pages[rows, column]
    return bool(of[0]) and bool((of == of[0]).all())


class PrefixTable:
    """The groups of a step on the device, all int32. `header` [HEADER_WORDS]; `blocks` [most, BLOCK_WORDS], each of at
    most `block` rows of one group; `rows` [rows + 1], the members, group after group; `skip` and `member` [rows + 1],
    of every row of the step the tokens that a block has, and, where there are any, its number among the members. A row
    for padding may stand beside those of the limits.

    `programs` are as many blocks as keep the device busy: keys of fewer are cut into parts.
    """

    def __init__(self, platform: Platform, limits: Limits, block: int, programs: int) -> None:
        self._block, self._programs = block, programs
        self._most = -(-limits.max_rows // block) + MAX_GROUPS
        words = HEADER_WORDS + self._most * BLOCK_WORDS + 3 * (limits.max_rows + 1)
        self._device = platform.allocate("workspace", (words,), torch.int32)
        self._host = [platform.host_buffer((words,), torch.int32) for _ in range(limits.depth + 1)]
        self._turn = 0
        self._seen: Ints = np.empty(0, np.int32)
        self._members: tuple[Ints, Ints, Ints] = (self._seen,) * 3  # rows, the last page they share: its place, its id
        self.header, self.blocks, self.rows, self.skip, self.member = self._cut(self._device)
        self._device.zero_()

    def update(self, pages: Ints, page_tokens: int, worth: int) -> None:
        """Take over a step's leading rows, of a page table [rows, width]; no wait. `worth` in pages, see `find`.

        Rows are looked through again when one of a few columns has changed: with rows, and now and then as they grow.
        """
        probes = [0, *(1 << i for i in range(pages.shape[1].bit_length()) if 1 << i < pages.shape[1])]
        seen = pages[:, probes]
        if np.array_equal(seen, self._seen) and self._holds(pages):
            return
        groups, before = find(pages, worth, self._block), len(self._members[0])
        members = np.concatenate([np.empty(0, np.int32), *(one.rows for one in groups)])
        last = np.repeat([one.pages - 1 for one in groups], [len(one.rows) for one in groups]).astype(np.int32)
        self._seen, self._members = seen, (members, last, pages[members, last])
        if not before and not groups:
            return
        host = self._host[self._turn]
        self._turn = (self._turn + 1) % len(self._host)
        header, blocks, rows, skip, member = (part.numpy() for part in self._cut(host))
        host.zero_()
        number = place = 0
        for group in groups:
            tokens, n = group.pages * page_tokens, len(group.rows)
            skip[group.rows] = tokens
            for begin in range(0, n, self._block):
                blocks[number] = (place + begin, min(self._block, n - begin), tokens, group.rows[0])
                number += 1
            place += n
        header[:], rows[:place] = (number, self._parts(number), place), members
        member[members] = np.arange(place)
        self._device.copy_(host, non_blocking=True)

    @staticmethod
    def room(limits: Limits, block: int, programs: int) -> int:
        """Members x parts at most, of any step up to the limits: n blocks are cut into `programs` / n parts."""
        return max(limits.max_rows, min(block * programs, MAX_PARTS * limits.max_rows))

    def _holds(self, pages: Ints) -> bool:
        """Whether all members still have the last page that they share, which answers for those before it."""
        rows, last, shared = self._members
        return int(last.max(initial=0)) < pages.shape[1] and np.array_equal(pages[rows, last], shared)

    def _parts(self, blocks: int) -> int:
        """As many as keep the device busy: a power of two."""
        wanted = max(1, min(MAX_PARTS, self._programs // max(1, blocks)))
        return 1 << (wanted.bit_length() - 1)

    def _cut(self, words: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        end = HEADER_WORDS + self._most * BLOCK_WORDS
        rows, skip, member = words[end:].chunk(3)
        return words[:HEADER_WORDS], words[HEADER_WORDS:end].view(-1, BLOCK_WORDS), rows, skip, member
