"""One component's page tables: which pages the row slots hold, and which of these are a sequence's own.

Knows pages, slots and leases of one component; no queues, and not when the prefix cache must make room.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from srtkit.scheduler.columns import MAX_SNAPSHOTS, Columns, Slots
from srtkit.scheduler.limits import SchedulerLimits
from srtkit.scheduler.pages import PagePool
from srtkit.spec.kv import Component
from srtkit.spec.prefix_cache import Lease
from srtkit.spec.step_plan import EMPTY, Ints

UNBOUNDED = 1 << 29  # "tokens of a page" where one holds any context


class PagedComponent:
    """Pages of a component of kind "paged", in order of position.

    `table` int32 [slots, max_pages]: pages, 0 for those never given or let go. `own` bool, same shape: the page is
    the sequence's own; all others are the cache's. `n_pages` int32 [slots]: indices given so far, those let go
    included. Every change of the table is noted for the next plan.
    """

    def __init__(self, number: int, component: Component, limits: SchedulerLimits, columns: Columns) -> None:
        self.number, self.component, self.name = number, component, component.name
        self.pool = PagePool(component.name, limits.pools[component])
        self.page_size, max_pages = limits.page_size, limits.max_pages
        if component.kind == "slot":
            self.page_size, max_pages = UNBOUNDED, 1 + MAX_SNAPSHOTS
        self._most = component.pages_held(limits.max_context, limits.chunk_tokens, limits.page_size)
        slots = len(columns.state)
        # np.zeros of large arrays costs address space only: memory is touched as contexts grow.
        self.table: Ints = np.zeros((slots, max_pages), np.int32)
        self.own: npt.NDArray[np.bool_] = np.zeros((slots, max_pages), np.bool_)
        self.n_pages: Ints = np.zeros(slots, np.int32)
        self._first: Ints = np.zeros(slots, np.int32)  # pages of a window before this index have been let go
        self._columns = columns
        self._noted: list[Ints] = []  # rows of `drain`, since the last plan
        self._renewed = False  # a slot may have been noted for two sequences

    def begin(self, slot: int, lease: Lease) -> None:
        """The slot's row starts with the lease's pages."""
        pages = lease.pages.get(self.name, EMPTY)
        self.table[slot, : len(pages)] = pages
        self.n_pages[slot] = len(pages)
        self._first[slot] = self.component.first_page(lease.length, self.page_size)

    def admit(self, slot: int) -> None:
        """The sequence that has begun will run: the next plan carries its pages."""
        index = np.arange(self._first[slot], self.n_pages[slot], dtype=np.int32)
        self._note(np.full_like(index, slot), index)

    def missing(self, slots: Slots | int, upto: Ints | int) -> int:
        """Pages that these slots lack to hold so many tokens: of a window never more than a sequence holds."""
        lacking = -(-upto // self.page_size) - self.n_pages[slots]
        return int(np.clip(lacking, 0, self._most).sum())

    def add(self, slots: Slots, index: Ints) -> None:
        """Free pages, which must be there, to these places; of a slot given several times in ascending order."""
        self.table[slots, index] = self.pool.take(len(index))
        self.own[slots, index] = True
        self.n_pages[slots] = index + 1
        self._note(slots, index)

    def settle(self, slot: int, length: int, remapped: Sequence[int]) -> None:
        """The cache took the slot's own pages of the first `length` tokens, but not those at `remapped` indices."""
        n, own = length // self.page_size, self.own[slot]
        before = np.count_nonzero(own)
        own[:n] = False
        own[list(remapped)] = True
        self.pool.to_cache(int(before - np.count_nonzero(own)))

    def let_go(self, slots: Slots) -> None:
        """Free own pages, forget the cache's, before the windows of all tokens after the last committed whole page.

        An uncommitted step starts there or later, so none sees them; and the prefix that ends there can be cached.
        """
        whole = self._columns.computed[slots] // self.page_size * self.page_size
        first = np.maximum(0, whole - self.component.window + 1) // self.page_size
        count = first - self._first[slots]
        if not (count > 0).any():
            return
        self._first[slots] = first
        rows = np.repeat(slots, count)
        index = (np.repeat(first - np.cumsum(count), count) + np.arange(len(rows))).astype(np.int32)
        self.pool.put_back(self.table[rows, index][self.own[rows, index]])
        self.table[rows, index], self.own[rows, index] = 0, False
        self._note(rows, index)

    def pins_unused(self, slot: int, length: int) -> bool:
        """Whether a lease of that length pins pages in place of which the slot has its own, or that it has let go."""
        let_go = self._first[slot] > self.component.first_page(length, self.page_size)
        return bool(let_go or self.own[slot, : length // self.page_size].any())

    def retire(self, slot: int) -> None:
        """The sequence has ended: its own pages wait for the steps in flight."""
        self.pool.retire(int(np.count_nonzero(self.own[slot])))

    def clear(self, slot: int) -> None:
        """Empty the slot's row; its own pages, retired before, are free."""
        self.pool.retired(self.table[slot][self.own[slot]])
        self.table[slot], self.own[slot] = 0, False
        self._renewed |= len(self._noted) > 0

    def drain(self) -> Ints:
        """Changes of the table since the last call, [n, 4] (component, slot, index, page), each entry once."""
        rows = np.concatenate(self._noted) if self._noted else EMPTY.reshape(0, 4)
        if self._renewed:
            _, places = np.unique(rows[:, 1] * self.table.shape[1] + rows[:, 2], return_index=True)
            rows = rows[places]
            rows[:, 3] = self.table[rows[:, 1], rows[:, 2]]
        self._noted.clear()
        self._renewed = False
        return rows

    def _note(self, slots: Slots, index: Ints) -> None:
        rows = np.empty((len(index), 4), np.int32)
        rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = self.number, slots, index, self.table[slots, index]
        self._noted.append(rows)


class StateComponent(PagedComponent):
    """State slots of recurrent layers: at index 0 a sequence's own, after it snapshots on their way to the cache.

    Until the sequence has its own state slot, index 1 is the cached snapshot that it starts from.
    """

    def __init__(self, number: int, component: Component, limits: SchedulerLimits, columns: Columns) -> None:
        super().__init__(number, component, limits, columns)
        self._starts: dict[int, int] = {}  # state slot → the one it is a copy of, 0: zero
        self._whole, self._chunk = limits.page_size, limits.chunk_tokens

    def begin(self, slot: int, lease: Lease) -> None:
        """The sequence is to start from the lease's snapshot."""
        self.n_pages[slot] = 0
        self.table[slot, 1] = lease.pages[self.name][0] if lease.length else 0
        self.want_snapshots(slot, lease.snapshot_at)

    def want_snapshots(self, slot: int, lengths: tuple[int, ...]) -> None:
        """Note where the cache wants the slot's state; if that is planned already, where the next chunk may end."""
        planned = int(self._columns.planned[slot])
        chunk = min(self._chunk, int(self._columns.prompt_len[slot]) - planned)
        later = (planned // self._whole + max(1, chunk // self._whole)) * self._whole
        at = sorted({length if length > planned else later for length in lengths})[:MAX_SNAPSHOTS]
        self._columns.snapshot_at[slot] = 0
        self._columns.snapshot_at[slot, : len(at)] = at

    def missed_snapshots(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Which of these slots have come beyond all that was wanted of them, and no snapshot is on its way."""
        last, computed = self._columns.snapshot_at[slots].max(axis=1), self._columns.computed[slots]
        missed: npt.NDArray[np.bool_] = (last > 0) & (last <= computed) & ~self.table[slots, 1:].any(axis=1)
        return missed

    def awaits_snapshot(self, slot: int) -> bool:
        """Whether one is on its way to the cache, or to be made at a length that is known."""
        to_come = self._columns.snapshot_at[slot] > self._columns.planned[slot]
        return bool(to_come.any() or self.table[slot, 1:].any())

    def add(self, slots: Slots, index: Ints) -> None:
        """A state slot for a sequence."""
        super().add(slots, index)
        for slot in slots.tolist():
            self._starts[int(self.table[slot, 0])] = int(self.table[slot, 1])
            self.table[slot, 1] = 0

    def holds_most(self, slot: int) -> bool:
        """Whether the slot has no place for another snapshot."""
        return bool(self.table[slot, 1:].all())

    def hold_snapshot(self, slot: int) -> int:
        """A free state slot, for a snapshot of the slot's state; a place for it and a free one must be there."""
        index = 1 + int(np.argmin(self.table[slot, 1:] != 0))
        self.table[slot, index], self.own[slot, index] = self.pool.take(1)[0], True
        return int(self.table[slot, index])

    def settle_snapshot(self, slot: int, snapshot: int, taken: bool) -> None:
        """The cache has taken a snapshot, or it is free: the step that wrote it is committed."""
        index = np.flatnonzero(self.table[slot] == snapshot)
        if taken:
            self.pool.to_cache(1)
        else:
            self.pool.put_back(self.table[slot, index])
        self.table[slot, index], self.own[slot, index] = 0, False

    def clear(self, slot: int) -> None:
        """As for pages; a state that has not been started need not be."""
        self._starts.pop(int(self.table[slot, 0]), None)
        super().clear(slot)

    def drain_starts(self) -> tuple[Ints, Ints]:
        """State slots to zero, [n, 2] (component, slot), and to copy, [m, 3] (component, source, target)."""
        pairs = [(self.number, source, target) for target, source in self._starts.items()]
        starts = np.array(pairs, np.int32).reshape(-1, 3)
        self._starts.clear()
        copied = starts[:, 1] > 0
        return starts[~copied][:, [0, 2]], starts[copied]
