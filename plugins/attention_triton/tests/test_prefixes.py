"""Rows that share their leading pages, by page ids alone. Without Triton and without a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from srtkit.spec.step_plan import Ints
from srtkit_plugin_attention_triton.prefixes import MAX_GROUPS, Group, find


def table(*rows: list[int]) -> Ints:
    """A page table of rows of different lengths, their tails page 0."""
    width = max(len(row) for row in rows)
    return np.array([row + [0] * (width - len(row)) for row in rows], np.int32)


def found(pages: Ints, worth: int = 1) -> list[tuple[list[int], int]]:
    return [(one.rows.tolist(), one.pages) for one in find(pages, worth)]


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


def test_there_are_not_more_groups_than_a_recorded_step_has_room_for() -> None:
    pages = np.repeat(np.arange(1, 2 * MAX_GROUPS + 1, dtype=np.int32), 2)[:, None]
    assert len(found(pages)) == MAX_GROUPS


@pytest.mark.parametrize(
    ("pages", "holds"),
    [
        (table([5, 6, 7], [1], [5, 6, 8]), True),
        (table([5, 6, 7], [1], [5, 9, 8]), False),
        (table([5], [1], [5]), False),
    ],
)
def test_a_group_holds_as_long_as_its_last_page_is_shared(pages: Ints, holds: bool) -> None:
    """The last row of the parameters has become shorter: what stands there is padding."""
    wide = np.pad(pages, ((0, 0), (0, 3 - pages.shape[1])))
    assert Group(np.array([0, 2], np.int32), 2).holds(wide) == holds
