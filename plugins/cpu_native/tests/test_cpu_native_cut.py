"""The cut of random steps, piece by piece: who meets whom, what is merged, and what the workspace must hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from srtkit.spec.attention import PrefixGroups
from srtkit_plugin_cpu_native.cut import SEES_ALL, WORTH_A_GROUP, Shape, StepCut, Work

Hint = tuple[tuple[int, int, int], ...]
"""(first row, members, pages) of each group."""


@dataclass(frozen=True)
class Step:
    """Rows of (tokens stored before, query tokens, leading pages in common with the row above)."""

    rows: tuple[tuple[int, int, int], ...]
    page: int
    shape: Shape
    leading: int = 0
    share: bool = True
    hint: Hint | None = None

    @property
    def n_query(self) -> list[int]:
        return [n for _, n, _ in self.rows]

    @property
    def context(self) -> list[int]:
        return [stored + n for stored, n, _ in self.rows]

    def pages(self) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        """Own pages for every row, apart from those that it shares; page 0 behind its last."""
        need = [-(-context // self.page) for context in self.context]
        table = np.zeros((len(self.rows), max(need, default=0) + 1), np.int32)
        fresh = 1
        for row, (_, _, common) in enumerate(self.rows):
            own = need[row] - common
            table[row, :common] = table[row - 1, :common]
            table[row, common : need[row]] = range(fresh, fresh + own)
            fresh += own
        return table

    def cut(self) -> Work:
        columns = [np.array(column, np.int32) for column in zip(*(self.hint or ()), strict=True)]
        columns = columns or [np.empty(0, np.int32)] * 3
        groups = None if self.hint is None else PrefixGroups(*columns)
        n_query, context = np.array(self.n_query, np.int32), np.array(self.context, np.int32)
        cut = StepCut(n_query, context, self.pages(), self.page, self.shape)
        return cut.work(self.leading, self.share, groups)


@st.composite
def steps(draw: DrawFn, sharing: bool = False) -> Step:
    """Up to eight rows; the leading ones have one query length, and the rest any.

    `sharing`: most rows have so much in common that it is read once for them.
    """
    page = draw(st.sampled_from([1, 3, 16, 64]))
    leading, others = draw(st.integers(2 if sharing else 0, 5)), draw(st.integers(0, 3))
    q_len = draw(st.integers(1, 5))
    n_query = [q_len] * leading + [draw(st.integers(0, 70)) for _ in range(others)]
    rows: list[tuple[int, int, int]] = []
    for n in n_query:
        stored = draw(st.integers(300, 700) if sharing else st.integers(0, 700))
        possible = min(stored, rows[-1][0]) // page if rows else 0
        rows.append((stored, n, possible - draw(st.integers(0, 3 if sharing else possible)) if possible > 3 else 0))
    window = 0 if sharing else draw(st.sampled_from([0, 1, 30, 200]))
    shape = Shape(
        kv_heads=draw(st.sampled_from([1, 3, 8])),
        block=draw(st.sampled_from([1, 10, 32, 96])),
        window=window,
        causal=bool(window) or draw(st.booleans()),
        threads=draw(st.sampled_from([1, 2, 64])),
        partials=3 * max(sum(n_query), len(rows), 1) + draw(st.sampled_from([0, 3000])),
    )
    hint = draw(st.none() | hints(rows, page, leading))
    return Step(tuple(rows), page, shape, leading, sharing or draw(st.booleans()), hint)


@st.composite
def hints(draw: DrawFn, rows: list[tuple[int, int, int]], page: int, leading: int) -> Hint:
    """Disjoint runs of leading rows with pages that they do have in common."""
    groups = []
    row = 0
    while row < leading:
        members = draw(st.integers(1, leading - row))
        common = min([rows[row][0] // page, *(rows[other][2] for other in range(row + 1, row + members))])
        if draw(st.booleans()):
            groups.append((row, members, draw(st.integers(0, common))))
        row += members
    return tuple(groups)


def met(step: Step, work: Work) -> dict[int, list[int]]:
    """Query token → slots that it meets, as the kernel reads a piece: abi.h."""
    table = step.pages()
    result: dict[int, list[int]] = defaultdict(list)
    for token, n, row, begin, end, position, _, _ in work.pieces.tolist():
        for i in range(n):
            low, high = begin, end
            if position != SEES_ALL:
                high = min(high, position + i + 1)
                low = max(low, position + i + 1 - step.shape.window) if step.shape.window else low
            at = np.arange(low, max(low, high))
            result[token + i] += (table[row, at // step.page] * step.page + at % step.page).tolist()
    return result


def visible(step: Step) -> dict[int, list[int]]:
    """Query token → slots that it must meet, from the rows alone."""
    table, token = step.pages(), 0
    result: dict[int, list[int]] = {}
    for row, (stored, n, _) in enumerate(step.rows):
        for position in range(stored, stored + n):
            end = position + 1 if step.shape.causal else stored + n
            at = np.arange(max(0, position + 1 - step.shape.window) if step.shape.window else 0, end)
            result[token] = (table[row, at // step.page] * step.page + at % step.page).tolist()
            token += 1
    return result


@given(steps() | steps(sharing=True))
def test_every_query_meets_what_it_may_see_exactly_once(step: Step) -> None:
    cut = met(step, step.cut())
    assert {token: sorted(slots) for token, slots in cut.items()} == {
        token: sorted(slots) for token, slots in visible(step).items()
    }


@given(steps() | steps(sharing=True))
def test_merges_are_the_partial_results_of_tokens_with_several_pieces(step: Step) -> None:
    work = step.cut()
    parts: dict[int, list[int]] = defaultdict(list)
    for token, n, _, _, _, _, partial, _ in work.pieces.tolist():
        for i in range(n):
            parts[token + i].append(partial + i if partial >= 0 else -1)
    merges = {token: work.ids[first:last].tolist() for token, first, last in work.merges.tolist()}
    assert len(merges) == len(work.merges)
    assert {token: sorted(ids) for token, ids in merges.items()} == {
        token: sorted(ids) for token, ids in parts.items() if len(ids) > 1
    }
    assert all(ids == [-1] for ids in parts.values() if len(ids) == 1)
    used = [id_ for ids in merges.values() for id_ in ids]
    assert len(set(used)) == len(used) == len(work.ids)
    assert all(0 <= id_ < step.shape.partials for id_ in used)


@given(steps() | steps(sharing=True))
def test_counts_are_those_of_all_and_of_the_leading_rows(step: Step) -> None:
    work, shape = step.cut(), step.shape
    items = [-(-n // shape.block) * shape.kv_heads for n in work.pieces[:, 1].tolist()]
    assert work.pieces[:, 7].tolist() == [0, *accumulate(items)][: len(items)]
    rest = sum(step.n_query[: step.leading])
    first = (work.pieces[:, 0] < rest).tolist()
    assert first == sorted(first, reverse=True), "leading rows stand first"
    assert work.n_pieces == (len(first), sum(first))
    assert work.n_items == (sum(items), sum(items[: sum(first)]))
    merged = (work.merges[:, 0] < rest).tolist()
    assert merged == sorted(merged, reverse=True)
    assert work.n_merges == (len(merged), sum(merged))
    assert {array.dtype for array in (work.pieces, work.merges, work.ids)} == {np.dtype(np.int32)}


def groups(step: Step) -> dict[tuple[int, int], int]:
    """(first row, members) → stored tokens read once, of the pieces that several leading rows share."""
    ends = np.cumsum(step.n_query)
    found: Counter[tuple[int, int]] = Counter()
    for token, n, row, begin, end, _, _, _ in step.cut().pieces.tolist():
        members = int(np.searchsorted(ends, token + n)) - row + 1
        if members > 1 and row < step.leading:
            assert token == ends[row] - step.n_query[row]
            assert token + n == ends[row + members - 1], "whole rows"
            found[row, members] += end - begin
    return dict(found)


@given(steps() | steps(sharing=True))
@settings(max_examples=200)
def test_a_hint_is_taken_in_place_of_looking(step: Step) -> None:
    hint = {(row, members): pages * step.page for row, members, pages in step.hint or ()}
    worth = {key: n for key, n in hint.items() if n * (key[1] - 1) >= WORTH_A_GROUP}
    found = groups(step)
    if step.shape.window or not step.share:
        assert found == {}
    elif step.hint is not None:
        assert found == worth


ONE = Shape(kv_heads=3, block=32, window=0, causal=True, threads=2, partials=100)


def test_rows_with_a_common_prefix_are_found() -> None:
    rows = ((600, 1, 0), (700, 1, 32), (520, 1, 32), (900, 1, 0), (900, 1, 2), (5, 1, 0))
    step = Step(rows, 16, ONE, leading=6)
    assert groups(step) == {(0, 3): 512}
    assert groups(replace(step, share=False)) == {}
    assert groups(replace(step, shape=replace(ONE, window=64))) == {}


def test_a_row_joins_a_group_only_if_that_saves_more_than_it_costs() -> None:
    """The third has 10 pages in common: with it 20 page reads are saved, without it 40."""
    step = Step(((640, 1, 0), (640, 1, 40), (640, 1, 10)), 16, ONE, leading=3)
    assert groups(step) == {(0, 2): 640}
    wider = replace(step, rows=((640, 1, 0), (640, 1, 40), (640, 1, 30)))
    assert groups(wider) == {(0, 3): 480}


def test_a_hint_of_more_pages_than_are_stored_is_cut_to_them() -> None:
    step = Step(((600, 8, 0), (600, 8, 37)), 16, replace(ONE, partials=1000), leading=2, hint=((0, 2, 38),))
    assert groups(step) == {(0, 2): 592}


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_one_long_row_is_cut_into_work_for_every_thread(threads: int) -> None:
    work = Step(((4000, 1, 0),), 16, replace(ONE, threads=threads), leading=1).cut()
    assert work.n_items[0] >= min(4 * threads, 3 * (4001 // 128))
    lengths = work.pieces[:, 4] - work.pieces[:, 3]
    assert lengths.min() >= 128
    assert lengths.max() - lengths.min() <= 1


def test_a_full_workspace_ends_the_cutting_not_the_step() -> None:
    shape = replace(ONE, threads=64, partials=3 * 30)
    work = Step(((4000, 1, 0),) * 4, 16, shape, leading=4, share=False).cut()
    assert work.n_pieces[0] > 4
    assert work.n_merges[0] == 1, "what is left is too little for a second row"
    assert len(work.ids) <= 30


def test_a_step_without_rows() -> None:
    work = Step((), 16, ONE).cut()
    assert work.n_pieces == work.n_items == work.n_merges == (0, 0)
    assert work.pieces.shape == (0, 8)
    assert work.merges.shape == (0, 3)
