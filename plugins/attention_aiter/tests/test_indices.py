"""The index builders, against what they are by definition: a row's keys one by one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

N_QUERY = (1, 3, 2, 4)
CONTEXT = (40, 3, 33, 1)
"""The last row is padding: of several queries, and said to have one key."""
KEYS = (40, 3, 33, 4)


def _kv_rows() -> Any:
    """The plugin's class of rows, where its kernels run in Triton's interpreter."""
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for a CPU")
    pytest.importorskip("triton", reason="Triton is not installed")
    from srtkit_plugin_attention_aiter.indices import KvRows

    return KvRows


@pytest.fixture(params=[(16, 16), (64, 16), (16, 1)], ids=lambda pair: "pages of {} by {}".format(*pair))
def rows(request: pytest.FixtureRequest) -> tuple[Any, int]:
    """Four rows in a part of a wider table, and a unit."""
    kv_rows = _kv_rows()
    page, unit = request.param
    width = -(-max(CONTEXT) // page) + 1
    table = torch.randperm(4 * (width + 3), dtype=torch.int32).view(4, -1)[:, :width] + 1
    cu_q = torch.tensor((0, *N_QUERY), dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return kv_rows(cu_q, torch.tensor(CONTEXT, dtype=torch.int32), table, page), unit


def slots(rows: Any, row: int) -> list[int]:
    """Of all that a row's pages have room for."""
    return [int(page) * rows.page + i for page in rows.table[row] for i in range(rows.page)]


def expected(rows: Any, unit: int, row: int, window: int = 0, *, stored: bool = False) -> list[int]:
    """A row's units; 0 for one that ends before every query's window."""
    keys = KEYS[row] - N_QUERY[row] if stored else KEYS[row]
    first = max(0, KEYS[row] - N_QUERY[row] - window + 1) if window else 0
    whole = [slot // unit for slot in slots(rows, row)[::unit]][: -(-keys // unit)]
    return [one if (i + 1) * unit > first else 0 for i, one in enumerate(whole)]


@pytest.mark.parametrize("stored", [False, True])
def test_a_list_has_all_units_and_a_tail_of_zeros(rows: tuple[Any, int], stored: bool) -> None:
    from srtkit_plugin_attention_aiter.indices import LIST_PAD, list_units

    kv, unit = rows
    whole = [expected(kv, unit, row, stored=stored) for row in range(4)]
    count = sum(map(len, whole))
    indptr, last = torch.full((5,), -7, dtype=torch.int32), torch.full((4,), -7, dtype=torch.int32)
    indices = torch.full((count + LIST_PAD + 9,), -7, dtype=torch.int64 if stored else torch.int32)
    list_units(kv, indptr, indices, last, unit=unit, stored=stored)
    assert indptr.diff().tolist() == [len(one) for one in whole]
    assert indices[:count].tolist() == [*itertools.chain(*whole)]
    assert indices[count : count + LIST_PAD].tolist() == [0] * LIST_PAD
    assert indices[count + LIST_PAD :].tolist() == [-7] * 9, "written past its padding"
    if not stored:
        assert last.tolist() == [(n - 1) % unit + 1 for n in KEYS]


@pytest.mark.parametrize("window", [0, 7])
def test_a_table_has_zeros_after_each_row(rows: tuple[Any, int], window: int) -> None:
    from srtkit_plugin_attention_aiter.indices import TABLE_PAD, tabulate

    kv, _ = rows
    width = kv.units(kv.page) + TABLE_PAD
    table, lengths = torch.full((4, width + 5), -7, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
    tabulate(kv, table, lengths, window=window)
    assert lengths.tolist() == list(KEYS)
    for row, found in enumerate(table.tolist()):
        mine = expected(kv, kv.page, row, window)
        assert found == mine + [0] * (width - len(mine)) + [-7] * 5


def forest(count: int, q_len: int) -> tuple[Tensor, Tensor]:
    """sees bool [rows, q_len, q_len] of random trees, and the contract's words of them."""
    generator = torch.Generator().manual_seed(q_len)
    sees = torch.eye(q_len, dtype=torch.bool).repeat(count, 1, 1)
    for row in sees:
        for i in range(1, q_len):
            parent = int(torch.randint(-1, i, (), generator=generator))
            row[i] |= row[parent] if parent >= 0 else False
    words = torch.zeros(count, q_len, -(-q_len // 32), dtype=torch.int64)
    for j in range(q_len):
        words[..., j // 32] |= sees[..., j].long() << j % 32
    return sees, words.to(torch.int32)


@pytest.fixture(
    params=[(1, 16), (5, 1), pytest.param((37, 16), marks=pytest.mark.full)],
    ids=lambda pair: "{} in pages of {}".format(*pair),
)
def drafts(request: pytest.FixtureRequest) -> tuple[Any, Tensor, Tensor]:
    """Rows that end with drafts, and one of padding, which is said to have one key; what drafts see, also in words."""
    kv_rows = _kv_rows()
    n, page = request.param
    context = torch.tensor([1, 40, n], dtype=torch.int32)
    table = torch.randperm(3 * -(-40 // page), dtype=torch.int32).view(3, -1) + 1
    return kv_rows(torch.tensor([0, n, 2 * n, 3 * n], dtype=torch.int32), context, table, page), *forest(3, n)


@pytest.mark.parametrize("window", [0, 1, 4, pytest.param(35, marks=pytest.mark.full)])
def test_each_draft_has_the_slots_that_it_sees(drafts: tuple[Any, Tensor, Tensor], window: int) -> None:
    from srtkit_plugin_attention_aiter.indices import TABLE_PAD, tabulate_drafts

    kv, sees, bits = drafts
    count, n, _ = sees.shape
    width = min(kv.units(1), window or kv.units(1)) + TABLE_PAD
    table, lengths = torch.full((count * n, width), -7, dtype=torch.int32), torch.zeros(count * n, dtype=torch.int64)
    tabulate_drafts(kv, bits, table, lengths, window=window)
    for draft in range(count * n):
        row, own = divmod(draft, n)
        mine, stored = slots(kv, row), max(int(kv.context[row]), n) - n
        seen = [*mine[:stored], *(mine[stored + j] for j in range(n) if sees[row, own, j])][-window:]
        assert lengths[draft] == len(seen)
        assert table[draft].tolist() == seen + [0] * (width - len(seen))


def test_masks_are_one_after_another_by_rows(drafts: tuple[Any, Tensor, Tensor]) -> None:
    from srtkit_plugin_attention_aiter.indices import draft_masks

    kv, sees, bits = drafts
    count, n, _ = sees.shape
    sizes = [n * max(int(keys), n) for keys in kv.context]
    mask, indptr = torch.full((sum(sizes),), 7, dtype=torch.uint8), torch.full((count,), -7, dtype=torch.int64)
    draft_masks(kv, bits, mask, indptr)
    assert indptr.tolist() == [0, sizes[0], sizes[0] + sizes[1]]
    for row, part in enumerate(mask.split(sizes)):
        found = part.view(n, -1)
        assert torch.equal(found[:, -n:], sees[row].to(torch.uint8))
        assert (found[:, :-n] == 7).all(), "the kernel does not read what is stored there"
