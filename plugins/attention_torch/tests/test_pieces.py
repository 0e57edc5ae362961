"""The cut of a step: every query meets every token it may see in exactly one piece."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srtkit.spec.attention import PrefixGroups
from srtkit_plugin_attention_torch.pieces import WORTH_A_GROUP, Piece, Place, StepCut

PAGE = 8


def cut(
    rows: list[tuple[int, int]], pages: np.ndarray, window: int = 0, budget: int = 256, leading: int = 0
) -> list[Piece]:
    """Pieces of rows (stored tokens, queries)."""
    n_query = np.array([n for _, n in rows], np.int32)
    context = np.array([stored + n for stored, n in rows], np.int32)
    step = StepCut(n_query, context, pages.astype(np.int32), PAGE, window, budget)
    return step.pieces(0, leading) + step.pieces(leading, len(rows))


def met(pieces: list[Piece], window: int) -> dict[int, Counter[int]]:
    """Query token → how often it meets each slot."""
    seen: dict[int, Counter[int]] = {}
    for piece in pieces:
        slots = piece.slots.reshape(piece.rows, piece.n_key)
        for row in range(piece.rows):
            for i in range(piece.n_query):
                keys = slots[row]
                if piece.lengths is not None:
                    assert set(keys[piece.lengths[row] :]) <= {keys[piece.lengths[row] - 1]}
                    keys = keys[: piece.lengths[row]]
                if piece.fresh or piece.mask_window is not None:
                    last = piece.n_key - piece.n_query + i + 1
                    limit = piece.mask_window or 0
                    keys = keys[max(0, last - limit) if limit else 0 : last]
                seen.setdefault(piece.token + row * piece.n_query + i, Counter()).update(keys.tolist())
    return seen


def expected(rows: list[tuple[int, int]], pages: np.ndarray, window: int) -> dict[int, Counter[int]]:
    """The same from the definition."""
    out: dict[int, Counter[int]] = {}
    for row, (stored, n) in enumerate(rows):
        for i in range(n):
            last = stored + i
            first = max(0, last - window + 1) if window else 0
            slots = [int(pages[row, p // PAGE]) * PAGE + p % PAGE for p in range(first, last + 1)]
            out[len(out)] = Counter(slots)
    return out


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[tuple[int, int]], np.ndarray, int, int, int]:
    """Rows, a page table in which neighbours may share leading pages, window, budget, leading rows."""
    n_query = st.sampled_from([1, 1, 5, 20, 20, 130])
    stored = st.sampled_from([0, 0, 7, 8, 60, 1200, 1200])
    rows = draw(st.lists(st.tuples(stored, n_query), min_size=1, max_size=6))
    width = max(-(-(stored + n) // PAGE) for stored, n in rows)
    pages = 1 + np.arange(len(rows) * width).reshape(len(rows), width)
    for row in range(1, len(rows)):
        shared = min(draw(st.sampled_from([0, 7, 150, 150])), rows[row][0] // PAGE, rows[row - 1][0] // PAGE)
        pages[row, :shared] = pages[row - 1, :shared]
    leading = 0
    while leading < len(rows) and rows[leading][1] == 1:
        leading += 1
    return rows, pages, draw(st.sampled_from([0, 0, 1, 50])), draw(st.sampled_from([1, 64, 4096])), leading


@settings(max_examples=60, derandomize=True, deadline=None)
@given(steps())
def test_every_query_meets_what_it_sees_once(step: tuple[list[tuple[int, int]], np.ndarray, int, int, int]) -> None:
    rows, pages, window, budget, leading = step
    pieces = cut(rows, pages, window, budget, leading)
    assert met(pieces, window) == expected(rows, pages, window)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(steps())
def test_places_tell_first_from_last(step: tuple[list[tuple[int, int]], np.ndarray, int, int, int]) -> None:
    rows, pages, window, budget, leading = step
    places: dict[int, list[Place]] = {}
    for piece in cut(rows, pages, window, budget, leading):
        for token in range(piece.token, piece.token + piece.tokens):
            places.setdefault(token, []).append(piece.place)
    for found in places.values():
        middle = [Place.MIDDLE] * (len(found) - 2)
        assert found == ([Place.ONLY] if len(found) == 1 else [Place.FIRST, *middle, Place.LAST])


@settings(max_examples=60, derandomize=True, deadline=None)
@given(steps())
def test_gathers_stay_within_the_workspace(step: tuple[list[tuple[int, int]], np.ndarray, int, int, int]) -> None:
    rows, pages, window, budget, leading = step
    tokens = sum(n for _, n in rows)
    for piece in cut(rows, pages, window, budget, leading):
        assert len(piece.slots) <= max(budget, tokens, *(stored + n for stored, n in rows))


def test_prefix_is_split_off_where_it_pays() -> None:
    pages = np.arange(1, 601).reshape(4, 150)
    shared = WORTH_A_GROUP // PAGE // 2
    for row in (1, 2):
        pages[row, :shared] = pages[0, :shared]
    three, two = [(1100, 1)] * 3, [(1100, 1)] * 2
    first = cut(three, pages[:3])[0]
    assert (first.tokens, first.n_key, first.place) == (3, shared * PAGE, Place.FIRST)
    assert all(piece.place is Place.ONLY for piece in cut(two, pages[:2]))


def test_a_row_that_shares_little_does_not_spoil_a_group() -> None:
    pages = np.arange(1, 601).reshape(4, 150)
    for row, shared in ((1, 140), (2, 140), (3, 2)):
        pages[row, :shared] = pages[0, :shared]
    first = cut([(1199, 1)] * 4, pages)[0]
    assert (first.tokens, first.n_key) == (3, 140 * PAGE)


def test_a_given_group_is_cut_to_what_its_members_have_stored() -> None:
    pages = np.arange(1, 301).reshape(2, 150)
    pages[1] = pages[0]
    step = StepCut(np.array([1, 1], np.int32), np.array([1200, 1161], np.int32), pages.astype(np.int32), PAGE, 0, 256)
    hint = PrefixGroups(np.array([0], np.int32), np.array([2], np.int32), np.array([150], np.int32))
    assert step.pieces(0, 2, hint)[0].n_key == 1160


@pytest.mark.parametrize("window", [0, 30])
def test_rows_without_queries_have_no_pieces(window: int) -> None:
    rows = [(40, 1), (0, 0), (10, 3)]
    pages = np.arange(1, 19).reshape(3, 6)
    assert met(cut(rows, pages, window), window) == expected(rows, pages, window)


def test_long_rows_do_not_pad_short_ones() -> None:
    pages = np.arange(1, 601).reshape(4, 150)
    pieces = cut([(10, 1), (12, 1), (1190, 1), (9, 1)], pages, budget=1 << 16)
    assert [piece.rows for piece in pieces] == [2, 1, 1]
