"""Bounds: pages of the host that are added together, ids within int32, an inner cache that keeps nothing."""

from __future__ import annotations

from collections import Counter, OrderedDict

import numpy as np
import pytest
from pydantic import ValidationError

from srtkit_plugin_cache_hiradix import HiradixOptions
from srtkit_plugin_cache_hiradix.copies import Copies
from srtkit_plugin_cache_hiradix.host import HostPage, HostTier
from srtkit_plugin_cache_hiradix.moves import SERIALS, Moves


def numbers_of(host: HostTier, names: list[bytes]) -> list[int]:
    """Of the pages that have these names."""
    return sorted(page.number for name in names if (page := host.get(name)))


def test_a_save_of_more_pages_than_the_host_has_fills_each_once() -> None:
    host, moves = HostTier(3), Moves(["full"])
    copies = Copies(["full"], host, moves, store_seconds=1.0)
    names = [bytes([i]) * 32 for i in range(5)]
    assert copies.save(names, {"full": np.arange(1, 6, dtype=np.int32)}) == 3
    [transfer] = moves.take()
    assert transfer.here.tolist() == [1, 2, 3]
    assert sorted(np.asarray(transfer.there).tolist()) == [0, 1, 2]
    move = moves.answer(transfer.id, ok=True)
    assert move is not None
    for page in move.host:
        host.moved(page, ok=True)
    assert numbers_of(host, names) == [0, 1, 2], "two names for one page"
    later = [bytes([i]) * 32 for i in range(10, 13)]
    copies.save(later, {"full": np.arange(7, 10, dtype=np.int32)})
    assert numbers_of(host, later) == [0, 1, 2]


def test_pages_in_use_are_passed_over_once() -> None:
    """Storage that is slow keeps most of the host busy; every save would search through all of it for every page."""
    host, looks = HostTier(100), Counter[str]()

    class Looked(OrderedDict[bytes, HostPage]):
        def move_to_end(self, key: bytes, last: bool = True) -> None:
            looks["passed"] += 1
            super().move_to_end(key, last)

    host._pages = Looked()
    for i in range(100):
        page = host.add(bytes([i]) * 32)
        assert page is not None
        page.ready, page.moves = True, int(i < 80)
    for i in range(20):
        page = host.add(bytes([100 + i]) * 32)
        assert page is not None and page.number == 80 + i, "those that were used last went first"
    assert looks["passed"] == 80
    assert host.add(b"n" * 32) is None


def test_ids_of_transfers_start_again_before_int32_ends() -> None:
    host, moves = HostTier(4), Moves(["full"])
    copies = Copies(["full"], host, moves, store_seconds=1.0)
    moves._serial = SERIALS - 1
    for i in range(2):
        copies.save([bytes([i]) * 32], {"full": np.array([i + 1], np.int32)})
    assert [one.id for one in moves.take()] == [SERIALS, 1]


def test_an_inner_cache_that_keeps_nothing_is_refused() -> None:
    """It would take what is loaded, and then not have it."""
    with pytest.raises(ValidationError, match="chunk shares nothing"):
        HiradixOptions.model_validate({"inner": {"use": "chunk"}})
