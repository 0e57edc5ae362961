"""Rows that share their leading pages, by page ids alone. Without Triton and without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srtkit.spec.facts import Limits
from srtkit.spec.step_plan import Ints
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_plugin_attention_triton import prefixes
from srtkit_plugin_attention_triton.prefixes import MAX_GROUPS, Group, PrefixTable, find


def table(*rows: list[int]) -> Ints:
    """A page table of rows of different lengths, their tails page 0."""
    width = max(len(row) for row in rows)
    return np.array([row + [0] * (width - len(row)) for row in rows], np.int32)


def found(pages: Ints, worth: int = 1, block: int = 64) -> list[tuple[list[int], int]]:
    return [(one.rows.tolist(), one.pages) for one in find(pages, worth, block)]


def test_what_all_of_them_share_and_nothing_beyond() -> None:
    assert found(table([5, 6, 7, 8], [9, 6], [5, 6, 7, 3], [5, 6, 1])) == [([0, 2, 3], 2)]


def test_equal_rows_share_all_that_they_have() -> None:
    assert found(table([5, 6], [5, 6], [4, 4, 4])) == [([0, 1], 2)]


def test_padding_shares_nothing() -> None:
    assert found(table([0], [0], [7, 1], [0])) == []
    assert found(table([7], [7], [0, 0, 0])) == [([0, 1], 1)]


def test_the_largest_saving_first_and_small_ones_not_at_all() -> None:
    pages = table([1, 2], [1, 2], [3, 4, 5], [3, 4, 5], [3, 4, 5], [8], [8])
    assert found(pages) == [([2, 3, 4], 3), ([0, 1], 2), ([5, 6], 1)]
    assert found(pages, worth=2) == [([2, 3, 4], 3), ([0, 1], 2)]
    assert found(pages, worth=7) == []


def test_a_stranger_who_shares_the_first_page_ends_no_group() -> None:
    family = list(range(1, 30))
    assert found(table([1], family, family, [1, 99], family)) == [([1, 2, 4], 29)]


def test_families_below_a_common_page_or_all_of_them_whichever_saves_more() -> None:
    long, other = [1, *range(10, 30)], [1, *range(40, 60)]
    assert found(table(long, other, long, other)) == [([0, 2], 21), ([1, 3], 21)]
    common = list(range(1, 20))
    assert found(table([*common, 90, 91], [*common, 92], [*common, 90, 91], [*common, 93])) == [([0, 1, 2, 3], 19)]


def test_what_is_read_once_for_each_block_is_not_saved_for_every_row() -> None:
    pages = np.tile(np.arange(1, 5, dtype=np.int32), (6, 1))
    assert found(pages, worth=12, block=2) == [(list(range(6)), 4)]
    assert found(pages, worth=13, block=2) == []
    assert found(pages, block=1) == []


def test_there_are_not_more_groups_than_a_recorded_step_has_room_for() -> None:
    pages = np.repeat(np.arange(1, 2 * MAX_GROUPS + 1, dtype=np.int32), 2)[:, None]
    assert len(found(pages)) == MAX_GROUPS


class Steps:
    """A table on the CPU that counts its searches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        platform = load_target(Subject("attention", "torch", "cpu"), suite_for("attention"), Path()).platform()
        self.table = PrefixTable(platform, Limits(8, 8, 1024, 16), block=2, programs=3)
        self.searches = 0
        monkeypatch.setattr(prefixes, "find", self._find)

    def _find(self, *given: Any) -> list[Group]:
        self.searches += 1
        return find(*given)

    def step(self, *rows: list[int]) -> tuple[list[int], list[int], list[int]]:
        """Header, members and tokens skipped."""
        self.table.update(table(*rows), 16, 1)
        members = self.table.rows[: int(self.table.header[2])]
        return self.table.header.tolist(), members.tolist(), self.table.skip[: len(rows)].tolist()


def test_steps_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that grow are not looked through again; others are, also below the same page and in a narrower table."""
    of = Steps(monkeypatch)
    document = [1, *range(50, 90)]
    assert of.step(document, document, document, [7]) == ([2, 1, 3], [0, 1, 2], [41 * 16] * 3 + [0])
    for own in (1000, 1001, 1002):
        of.step([*document, own], [*document, own + 10], document, [7, 5])
    assert of.searches == 2, "once more when a row has got its second page"
    short = document[:35]
    assert of.step(short, short, short, [7, 5]) == ([2, 1, 3], [0, 1, 2], [35 * 16] * 3 + [0]), "a narrower table"
    of.step([9], [8], [7], [6])
    other = [*document[:36], *range(200, 205)]
    assert of.step(document, document, document, [7, 5])[2][:3] == [41 * 16] * 3
    third = [*document[:36], *range(300, 305)]
    assert of.step(document, other, third, [7, 5])[2][:3] == [36 * 16] * 3, "other rows at the same places"
    assert of.step([1, 2], [1, 3], [1, 4], [7]) == ([2, 1, 3], [0, 1, 2], [16, 16, 16, 0])
    assert of.step(document, document, document, [1, 5]) == ([2, 1, 3], [0, 1, 2], [41 * 16] * 3 + [0])
    assert of.step([3], [4], [5], [6]) == ([0, 2, 0], [], [0, 0, 0, 0])
    assert of.step([8, 9], [8, 9], [6], [5]) == ([1, 2, 2], [0, 1], [32, 32, 0, 0])
