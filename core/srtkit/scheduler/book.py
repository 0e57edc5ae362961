"""Who holds which page: the pool, the prefix cache and the columns brought together. Plans nothing.

waiting ──lend──▶ leased prefix        (cache's pages, pinned)
        ──grow──▶ + own pages          (in use)
        ──keep──▶ own whole pages become the cache's, still pinned
        ──end───▶ keep, then what is left retires with the slot until in_flight is 0
"""

import numpy as np

from srtkit.scheduler.columns import Columns, State
from srtkit.scheduler.pages import PagePool
from srtkit.scheduler.sequence import Sequence
from srtkit.spec.prefix_cache import Evicted, PrefixCache
from srtkit.spec.step_plan import EMPTY, Ints


class PageBook:
    """Pages of one paged component for all sequences."""

    def __init__(self, pool: PagePool, cache: PrefixCache, columns: Columns, page_size: int) -> None:
        self.pool = pool
        self.cache = cache
        self.columns = columns
        self.page_size = page_size
        self.writes: list[Ints] = []  # page writes for the next plan: [n, 4] (component, slot, index, page)
        self._rewritten = False  # a slot may stand in `writes` for two sequences

    def available(self) -> int:
        """Pages that are free or could be made free by eviction."""
        return self.pool.free + self.cache.evictable(self.pool.component)

    def missing(self, slot: int, upto: int) -> int:
        """Pages the slot lacks to hold `upto` tokens."""
        return max(0, -(-upto // self.page_size) - int(self.columns.n_pages[slot]))

    def lend(self, sequence: Sequence) -> int:
        """Match the cache for a sequence that has its slot; returns the tokens it need not compute."""
        columns, slot = self.columns, sequence.slot
        # At least one token must be computed, or there is nothing to sample from.
        lease = self.cache.match(sequence.key(sequence.ids, limit=len(sequence.ids) - 1))
        pages = lease.pages.get(self.pool.component, EMPTY)
        sequence.lease, sequence.lease_pages, sequence.mine = lease, len(pages), EMPTY
        columns.planned[slot] = columns.computed[slot] = lease.length
        self._append(slot, pages)
        return lease.length

    def unlend(self, sequence: Sequence) -> None:
        """Undo `lend`: the sequence cannot be admitted now."""
        if sequence.lease_pages:
            self.writes.pop()
        self._give_back(sequence)

    def grow(self, slot: int, upto: int) -> bool:
        """Give the slot pages for `upto` tokens, evicting if need be. False: not enough, nothing changed."""
        if missing := self.missing(slot, upto):
            if not self._make_free(missing):
                return False
            self._append(slot, self.pool.take(missing))
        return True

    def grow_decode(self, slots: Ints) -> Ints:
        """Give each decode slot room for one more token; returns the slots for which no page was left."""
        columns = self.columns
        short = slots[columns.planned[slots] >= columns.n_pages[slots] * self.page_size]
        if len(short) == 0:
            return EMPTY
        self._make_free(len(short))
        served, left = short[: self.pool.free], short[self.pool.free :]
        pages, index = self.pool.take(len(served)), columns.n_pages[served]
        columns.page_table[served, index] = pages
        columns.n_pages[served] += 1
        self._note_writes(served, index, pages)
        return left

    def keep(self, sequence: Sequence) -> None:
        """Give the cache every whole page whose tokens are committed."""
        columns, slot = self.columns, sequence.slot
        upto = int(columns.computed[slot])
        if sequence.lease is None or upto // self.page_size <= sequence.lease_pages:
            return
        component = self.pool.component
        n_pages = int(columns.n_pages[slot])
        before = len(sequence.own_indices(n_pages))
        key = sequence.key(columns.tokens[slot, :upto].copy(), limit=upto)
        lease, remaps = self.cache.insert(sequence.lease, key, {component: columns.page_table[slot, :n_pages]}, upto)
        sequence.lease, sequence.lease_pages = lease, len(lease.pages.get(component, EMPTY))
        sequence.mine = np.array([one.index for one in remaps if one.component == component], np.int32)
        self.pool.to_cache(before - len(sequence.own_indices(n_pages)))

    def end(self, sequence: Sequence) -> None:
        """The sequence stops running: keep what is committed, retire the rest with its slot."""
        self.keep(sequence)
        slot = sequence.slot
        self.pool.retire(len(sequence.own_indices(int(self.columns.n_pages[slot]))))
        self.columns.state[slot] = State.RETIRING

    def finish_retiring(self, sequence: Sequence) -> None:
        """No step in flight touches the slot any more: free its pages, unpin its lease, free the slot."""
        slot = sequence.slot
        own = sequence.own_indices(int(self.columns.n_pages[slot]))
        self.pool.retired(self.columns.page_table[slot, own])
        self._rewritten = True
        self._give_back(sequence)

    def flush(self) -> int:
        """Empty the cache as far as it is not pinned; how many pages became free."""
        return self.take_evicted(self.cache.reset())

    def take_evicted(self, evicted: Evicted) -> int:
        """Pages the cache gave back become free; how many."""
        pages = evicted.pages.get(self.pool.component, EMPTY)
        self.pool.from_cache(pages)
        return len(pages)

    def drain_writes(self) -> Ints:
        """Page writes since the last plan, flattened; each (slot, index) at most once, the last one."""
        rows = np.concatenate(self.writes) if self.writes else np.empty((0, 4), np.int32)
        if self._rewritten:
            _, latest = np.unique(rows[::-1, 1:3], axis=0, return_index=True)
            rows = rows[len(rows) - 1 - latest]
        self.writes.clear()
        self._rewritten = False
        return rows.ravel()

    def _make_free(self, n: int) -> bool:
        component = self.pool.component
        while self.pool.free < n and self.cache.evictable(component):
            self.take_evicted(self.cache.evict(component, n - self.pool.free))
        return self.pool.free >= n

    def _give_back(self, sequence: Sequence) -> None:
        """Unpin its lease, free its slot."""
        assert sequence.lease is not None, "only a sequence with a lease has a slot"
        self.take_evicted(self.cache.release(sequence.lease))
        sequence.lease, sequence.lease_pages, sequence.mine = None, 0, EMPTY
        self.columns.free(sequence.slot)

    def _append(self, slot: int, pages: Ints) -> None:
        """Put pages at the end of the slot's row of the table."""
        index = np.arange(len(pages), dtype=np.int32) + self.columns.n_pages[slot]
        self.columns.page_table[slot, index] = pages
        self.columns.n_pages[slot] += len(pages)
        self._note_writes(np.full_like(index, slot), index, pages)

    def _note_writes(self, slots: Ints, index: Ints, pages: Ints) -> None:
        if len(pages):
            self.writes.append(np.stack((np.zeros_like(index), slots, index, pages), axis=1))
