"""All state of running sequences as numpy columns indexed by row slot. Knows nothing of queues or caches.

A row slot is held from admission until the last step that touches it is committed; slot 0 is padding.
A sequence of P prompt tokens has KV for `planned` tokens once every launched step has run; a decode row
consumes the token at position `planned` and samples the one at `planned + 1`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from srtkit.spec.step_plan import MAX_STOP_IDS, Ints

Slots = npt.NDArray[np.integer[Any]]  # where an array is indexed often, of dtype intp: others are converted each time
MAX_SNAPSHOTS = 4  # that a cache may want of a sequence at a time


class State:
    """Where a slot is in its life. No Enum: numpy takes ten times as long to compare an array with one."""

    FREE = 0
    PROMPT = 1  # prompt tokens remain to be computed
    DECODE = 2
    RETIRING = 3  # ended; steps in flight still touch it


class Columns:
    """One array per fact, [max_running + 1] or [max_running + 1, n]. The scheduler is the only writer."""

    def __init__(self, max_running: int, max_context: int) -> None:
        n = max_running + 1
        self.state: npt.NDArray[np.int8] = np.zeros(n, np.int8)
        # np.empty of large arrays costs address space only: pages are touched as contexts grow.
        self.tokens: Ints = np.empty((n, max_context + 1), np.int32)
        self.prompt_len: Ints = np.zeros(n, np.int32)  # tokens to compute before the first new one
        self.planned: Ints = np.zeros(n, np.int32)  # tokens with KV once all launched steps have run
        self.computed: Ints = np.zeros(n, np.int32)  # tokens with KV in committed steps
        self.known: Ints = np.zeros(n, np.int32)  # committed tokens: prompt and outputs
        self.target_len: Ints = np.zeros(n, np.int32)  # length at which it ends
        self.min_len: Ints = np.zeros(n, np.int32)  # stop ids do not end it below this length
        self.stop_ids: Ints = np.full((n, MAX_STOP_IDS), -1, np.int32)
        self.snapshot_at: Ints = np.zeros((n, MAX_SNAPSHOTS), np.int32)  # lengths at which the cache wants the state
        self.in_flight: npt.NDArray[np.int16] = np.zeros(n, np.int16)  # launched, uncommitted steps
        self.row_flags: Ints = np.zeros(n, np.int32)  # RowFlag of its decode rows
        self.greedy: npt.NDArray[np.bool_] = np.zeros(n, np.bool_)
        self._free = list(range(max_running, 0, -1))

    @property
    def free_slots(self) -> int:
        """Row slots that can be given out."""
        return len(self._free)

    def acquire(self) -> int:
        """A free row slot, its columns zeroed."""
        slot = self._free.pop()
        self.stop_ids[slot] = -1
        self.snapshot_at[slot] = 0
        for column in (self.planned, self.computed, self.known, self.in_flight):
            column[slot] = 0
        return slot

    def free(self, slot: int) -> None:
        """Give a row slot back."""
        self.state[slot] = State.FREE
        self._free.append(slot)

    def decode_rows(self) -> npt.NDArray[np.intp]:
        """Slots whose next token is to be computed; those at their planned end are left out.

        The longest come first, for kernels that begin with the first row: no long one is left alone at the end.
        """
        rows: npt.NDArray[np.intp] = ((self.state == State.DECODE) & (self.planned + 1 < self.target_len)).nonzero()[0]
        return rows[(-self.planned[rows]).argsort(kind="stable")]
