"""The most that any prefix cache could reuse of a trace whose future it knows. Knows pages, no tokens once counted.

Belady's rule, furthest next use first, is optimal here and not only a bound. See `Future`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.prefix_trace.generate import Request, Trace
from srtkit.spec.step_plan import Ints


@dataclass(frozen=True)
class Moment:
    """What one event means for any cache, of whatever size and policy; counts are pages.

    `running` is what running requests hold after it. A start finds `held` pages that other running requests hold.
    An end leaves `idle` pages that nobody holds: for each request that will be the next to use some, how many.
    """

    request: int
    starts: bool
    running: int
    held: int = 0
    idle: dict[int, int] = field(default_factory=dict)


class Future:
    """All next uses of all pages of a trace.

    Why evicting the unpinned page with the furthest next use is optimal:
    - A start needs its whole prompt at once and holds it to its end, so what running requests hold is the same for
      every policy. Whenever nobody holds a page any more, keeping it all the time until its next use saves computing
      one page. So the question is which of these intervals to keep: as many as possible, never more at once than
      there is room for. When there is too little room for the first time, one of those under way has to go. Let a
      solution keep the one that ends last, and drop another: with the two exchanged it keeps as many, before this
      moment there was room for all of them, and after it the exchanged one ends earlier. So dropping the one that
      ends last is never wrong, and that is Belady's rule. It holds for any room, also one that changes with time.
    - A prefix cache may evict leaves only. Every use of a page uses its parent too, so no page's next use comes
      before its parent's, and among the pages with the furthest next use there is always a leaf. The rule never
      wants what the tree forbids: the tree costs nothing, and this is the optimum of prefix caches, not just a bound.

    Taken for granted: starts and ends are as in the trace whatever is cached; every page costs the same to compute.
    """

    def __init__(self, trace: Trace, page_size: int) -> None:
        """Reads the whole trace once."""
        self.page_size = page_size
        self.never = len(trace.requests)
        whole, self.distinct = _page_numbers(trace.requests, page_size)
        self._reusable = [whole[n][: (one.prompt - 1) // page_size] for n, one in enumerate(trace.requests)]
        self.moments = list(self._moments(trace, whole))
        self.most_running = max(moment.running for moment in self.moments)

    def hits(self, capacity: int | None = None) -> list[int]:
        """Prompt tokens of each request that are reused at best with so many pages; None: with any number of pages.

        Raises `ValueError` when what runs at once does not fit.
        """
        return [pages * self.page_size for pages in self._replay(capacity)[0]]

    def working_set(self) -> int:
        """The fewest pages with which nothing is lost: what runs and what will be used again, at most at once."""
        return self._replay(None)[1]

    def skew(self) -> float:
        """The share of all reuses that fall to the tenth of pages used most."""
        uses = np.bincount(np.concatenate(self._reusable), minlength=self.distinct)
        again = np.sort(np.maximum(uses - 1, 0))[::-1]
        return float(again[: len(again) // 10].sum() / again.sum())

    def _replay(self, capacity: int | None) -> tuple[list[int], int]:
        """Pages that each request reuses, and the most pages ever in use or worth keeping.

        Pages with the same next use are as good as each other (they lie on one path, and the deepest goes first),
        so counting them is enough. Pages that are never used again are not worth keeping.
        """
        if capacity is not None and capacity < self.most_running:
            raise ValueError(f"{capacity} pages do not hold the {self.most_running} of all that runs at once")
        kept = [0] * self.never
        latest: list[int] = []  # a heap of negated requests, for which pages may be kept
        total = most = 0
        hits = [0] * self.never
        for moment in self.moments:
            if not moment.starts:
                for user, count in moment.idle.items():
                    heapq.heappush(latest, -user)
                    kept[user] += count
                    total += count
            else:
                hits[moment.request] = moment.held + kept[moment.request]
                total -= kept[moment.request]
                kept[moment.request] = 0
            most = max(most, moment.running + total)
            excess = moment.running + total - capacity if capacity is not None else 0
            while excess > 0:
                gone = min(kept[-latest[0]], excess)
                kept[-latest[0]] -= gone
                total, excess = total - gone, excess - gone
                if not kept[-latest[0]]:
                    heapq.heappop(latest)
        return hits, most

    def _moments(self, trace: Trace, whole: Sequence[Ints]) -> Iterator[Moment]:
        next_users = self._next_users(trace, whole)
        holders = np.zeros(self.distinct, np.int32)
        pinned = own = 0
        for event in trace.events:
            number = event.request
            mine = self._reusable[number]
            alone = -(-trace.requests[number].computed // self.page_size) - len(mine)
            if event.starts:
                held = int(np.count_nonzero(holders[mine]))
                holders[mine] += 1
                pinned, own = pinned + len(mine) - held, own + alone
                yield Moment(number, True, pinned + own, held=held)
                continue
            holders[mine] -= 1
            free = holders[whole[number]] == 0
            pinned, own = pinned - int(np.count_nonzero(free[: len(mine)])), own - alone
            users, counts = np.unique(next_users[number][free], return_counts=True)
            idle = dict(zip(users.tolist(), counts.tolist(), strict=True))
            idle.pop(self.never, None)
            yield Moment(number, False, pinned + own, idle=idle)

    def _next_users(self, trace: Trace, whole: Sequence[Ints]) -> dict[int, Ints]:
        """Which request is the next to use each page of a request, at the request's end; `never` for none."""
        coming = np.full(self.distinct, self.never, np.int32)
        users = {}
        for event in reversed(trace.events):
            if event.starts:
                coming[self._reusable[event.request]] = event.request
            else:
                users[event.request] = coming[whole[event.request]]
        return users


def _page_numbers(requests: Sequence[Request], page_size: int) -> tuple[list[Ints], int]:
    """The whole pages of each request's computed tokens; pages with the same tokens before them have one number."""
    known: dict[tuple[int, bytes], int] = {}
    width = page_size * np.dtype(np.int32).itemsize
    rows = []
    for request in requests:
        content = request.ids.tobytes()
        row, page = [], -1
        for at in range(0, request.computed // page_size * width, width):
            page = known.setdefault((page, content[at : at + width]), len(known))
            row.append(page)
        rows.append(np.array(row, np.int32))
    return rows, len(known)
