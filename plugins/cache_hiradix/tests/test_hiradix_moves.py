"""Counts of pages that moves and leases hold, against counting anew; and that asking for one counts nothing."""

from __future__ import annotations

from collections import Counter

import numpy as np

from srtkit.spec.prefix_cache import Evicted
from srtkit_plugin_cache_hiradix.moves import Move, Moves


def test_busy_is_what_counting_finds() -> None:
    random = np.random.default_rng(11)
    moves, total = Moves(["full"]), 40
    cached, free = set(range(20)), set(range(20, total))
    pins, busy, waiting = Counter[int](), Counter[int](), set[int]()
    leases, under_way = [], {}
    seen = 0
    for _ in range(3000):
        some = np.array(random.permutation(sorted(cached))[: int(random.integers(1, 6))], np.int32)
        what = random.integers(6)
        if what == 0:
            moves.pin({"full": some}, 1)
            pins.update(some.tolist())
            leases.append(some)
        elif what == 1 and leases:
            gone = leases.pop(int(random.integers(len(leases))))
            moves.pin({"full": gone}, -1)
            pins.subtract(gone.tolist())
        elif what == 2:
            number = moves.ask(Move("save", [], {"full": some}), {"full": some})
            under_way[number] = some
            busy.update(some.tolist())
        elif what == 3 and under_way:
            number = int(random.choice(list(under_way)))
            moves.answer(number, ok=True)
            busy.subtract(under_way.pop(number).tolist())
            back = set(moves.now_free().pages["full"].tolist())
            assert back == {page for page in waiting if not busy[page]}
            waiting -= back
            free |= back
        elif what == 4:
            loose = [page for page in some.tolist() if not pins[page]]
            given = moves.free_of(Evicted({"full": np.array(loose, np.int32)}))["full"].tolist()
            assert given == [page for page in loose if not busy[page]]
            cached -= set(loose)
            free |= set(given)
            waiting |= set(loose) - set(given)
        elif free:
            cached.add(free.pop())
        counted = sum(1 for page in cached if busy[page] and not pins[page])
        assert (moves.busy("full"), moves.held_back("full")) == (counted, len(waiting))
        seen += counted > 2 and bool(waiting)
    assert seen > 100
