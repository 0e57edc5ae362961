"""Who holds which page: all components, the prefix cache and the columns brought together. Plans nothing.

waiting ──lend──▶ leased prefix        (cache's pages, pinned)
        ──grow──▶ + own pages          (in use)
        ──keep──▶ own whole pages become the cache's, still pinned; let_go: those before a window are free
        ──end───▶ keep, then what is left retires with the slot until in_flight is 0
"""

import numpy as np

from srtkit.scheduler.columns import Columns, Slots, State
from srtkit.scheduler.component import PagedComponent, StateComponent
from srtkit.scheduler.limits import SchedulerLimits
from srtkit.scheduler.room import Room
from srtkit.scheduler.sequence import Sequence
from srtkit.scheduler.tiers import Tiers
from srtkit.spec.prefix_cache import PrefixCache
from srtkit.spec.step_plan import Column, Ints


class PageBook:
    """Pages of all components, `parts`, for all sequences. Counts of pages are int32 [parts]."""

    def __init__(self, limits: SchedulerLimits, cache: PrefixCache, columns: Columns) -> None:
        self.cache = cache
        self.columns = columns
        self.page_size = limits.page_size
        self.parts: list[PagedComponent] = []
        self.state: StateComponent | None = None
        for number, component in enumerate(limits.pools):
            if component.kind == "paged":
                self.parts.append(PagedComponent(number, component, limits, columns))
            else:
                self.state = StateComponent(number, component, limits, columns)
                self.parts.append(self.state)
        self._paged = [part for part in self.parts if part is not self.state]
        self.room, self.tiers = Room(self.parts, cache), Tiers(cache, self.parts)
        self._windows = [part for part in self.parts if part.component.reach == "window"]

    @property
    def main(self) -> PagedComponent:
        """The component that figures speak of: one whose pages stay, if there is any."""
        return next((part for part in self.parts if part.component.reach == "all"), self.parts[0])

    def missing(self, slots: Slots | int, upto: Ints | int) -> Ints:
        """Pages that these slots lack to hold so many tokens, those of a window a sequence at a time."""
        return np.array([part.missing(slots, upto) for part in self.parts], np.int32)

    def longest(self, slot: int) -> int:
        """Tokens the slot could hold with all available pages."""
        pages = zip(self.parts, self.room.available(), strict=True)
        return min((int(part.n_pages[slot]) + int(n)) * part.page_size for part, n in pages)

    def lend(self, sequence: Sequence) -> int:
        """Match the cache for a sequence that has its slot; returns the tokens it need not compute."""
        columns, slot = self.columns, sequence.slot
        # At least one token must be computed, or there is nothing to sample from.
        lease = self.cache.match(sequence.key(sequence.ids, limit=len(sequence.ids) - 1))
        if lease.pending and (n := self.room.most(lease.pending // self.page_size)):
            lease = self.tiers.load(lease, n)
        sequence.lease = lease
        columns.planned[slot] = columns.computed[slot] = lease.length
        for part in self.parts:
            part.begin(slot, lease)
        return lease.length

    def admit(self, slot: int) -> None:
        """The slot's sequence, which has been lent its pages, will run."""
        for part in self.parts:
            part.admit(slot)

    def grow(self, slot: int, upto: int) -> bool:
        """Give the slot pages for `upto` tokens, evicting if need be. False: not enough, nothing changed."""
        missing = [(part, n) for part in self.parts if (n := -(-upto // part.page_size) - int(part.n_pages[slot])) > 0]
        if not all(self.room.make(part, n) for part, n in missing):
            return False
        for part, n in missing:
            index = np.arange(n, dtype=np.int32) + part.n_pages[slot]
            part.add(np.full_like(index, slot), index)
        return True

    def grow_decode(self, slots: Slots) -> Slots:
        """Give each decode slot room for one more token; returns the slots for which no page was left."""
        left, planned = np.empty(0, np.intp), self.columns.planned[slots]
        for part in self._paged:
            short = slots[planned >= part.n_pages[slots] * part.page_size]
            if len(short):
                self.room.make(part, len(short))
                served, rest = short[: part.pool.free], short[part.pool.free :]
                part.add(served, part.n_pages[served])
                left = np.union1d(left, rest) if len(rest) else left
        return left

    def keep(self, sequence: Sequence, upto: int, snapshot: int = 0) -> None:
        """Give the cache every whole page of the first `upto` tokens, all committed, and the state after exactly them.

        `snapshot`: the state slot that holds it, 0 for none.
        """
        columns, slot, lease, state = self.columns, sequence.slot, sequence.lease, self.state
        if lease is None or (upto // self.page_size <= lease.length // self.page_size and not snapshot):
            return
        key = sequence.key(columns.tokens[slot, :upto].copy(), limit=upto)
        pages = {part.name: part.table[slot, : part.n_pages[slot]] for part in self._paged}
        if state:
            pages[state.name] = np.array([snapshot] if snapshot else [], np.int32)
        sequence.lease, remaps = self.cache.insert(lease, key, pages, upto)
        mine = {part.name: [one.index for one in remaps if one.component == part.name] for part in self.parts}
        for part in self._paged if sequence.lease.length > lease.length else ():
            part.settle(slot, sequence.lease.length, mine[part.name])
        if state and snapshot:
            state.settle_snapshot(slot, snapshot, sequence.lease.length >= upto and not mine[state.name])
        if state and not state.awaits_snapshot(slot):
            state.want_snapshots(slot, () if sequence.lease is lease else sequence.lease.snapshot_at)

    def let_go(self, slots: Slots) -> None:
        """Free the pages of running slots that are before every later token's window."""
        for part in self._windows:
            part.let_go(slots)

    def pins_unused(self, sequence: Sequence) -> bool:
        """Whether it pins cached pages that it does not read: it has copies of them, or is a window beyond them.

        Not told while a step of it is in flight, whose commit may give it pages.
        """
        slot, length = sequence.slot, sequence.lease.length if sequence.lease else 0
        return not self.columns.in_flight[slot] and any(part.pins_unused(slot, length) for part in self.parts)

    def end(self, sequence: Sequence) -> None:
        """The sequence stops running: keep what is committed, retire the rest with its slot."""
        self.keep(sequence, int(self.columns.computed[sequence.slot]))
        for part in self.parts:
            part.retire(sequence.slot)
        self.columns.state[sequence.slot] = State.RETIRING

    def give_back(self, sequence: Sequence) -> None:
        """No step in flight touches the slot (any more): free what is retiring, unpin its lease, free the slot."""
        assert sequence.lease is not None, "only a sequence with a lease has a slot"
        for part in self.parts:
            part.clear(sequence.slot)
        self.room.take_evicted(self.cache.release(sequence.lease))
        sequence.lease = None
        self.columns.free(sequence.slot)

    def changes(self, slots: Slots, start: Ints, n_query: Ints) -> dict[Column, Ints]:
        """What the next plan, of these rows, must carry of pages and states; given once."""
        columns = {Column.PAGE_WRITES: np.concatenate([part.drain() for part in self.parts]).ravel()}
        if self.state:
            zero, copies = self.state.drain_starts()
            columns |= {Column.ZERO: zero.ravel(), Column.COPIES: copies.ravel()}
            columns[Column.SNAPSHOTS] = self._snapshots(self.state, slots, start, n_query)
        return columns

    def _snapshots(self, state: StateComponent, slots: Slots, start: Ints, n_query: Ints) -> Ints:
        """State slots for the snapshots that these rows come by: (row, offset, slot); none where none can be had."""
        at, begin = self.columns.snapshot_at[slots], start[:, None]
        found = []
        for row, i in zip(*np.nonzero((begin < at) & (at <= begin + n_query[:, None])), strict=True):
            slot = int(slots[row])
            if not state.holds_most(slot) and self.room.make(state, 1):
                found.append((row, at[row, i] - start[row], state.hold_snapshot(slot)))
        return np.array(found, np.int32).ravel()
