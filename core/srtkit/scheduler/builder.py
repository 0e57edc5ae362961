"""Rows and columns → StepPlan. Knows the plan's format; decides nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from srtkit.scheduler.book import PageBook
from srtkit.scheduler.columns import Slots
from srtkit.scheduler.sequence import Sequence
from srtkit.spec.step_plan import ADMIT, EMPTY, Column, Ints, RowFlag, StepFlag, StepKey, StepPlan


@dataclass(frozen=True)
class Chunk:
    """A prompt row: tokens [start, start + n) of the slot; `last` when the prompt ends with it."""

    slot: int
    start: int
    n: int
    last: bool


class PlanBuilder:
    """Collects what changed since the last plan, and builds the next one."""

    def __init__(self, book: PageBook, fit: Callable[[StepKey], StepKey]) -> None:
        self._book = book
        self._columns = book.columns
        self._fit = lru_cache(1024)(fit)
        self._step = 0
        # By slot, as one that ended before any step may have been given out again: its records of ADMIT and STOP_IDS.
        self._admitted: dict[int, tuple[Ints, Ints]] = {}
        self._released: list[int] = []

    def admit(self, sequence: Sequence) -> None:
        """The slot's device state starts with the next plan."""
        sampling, slot = sequence.request.sampling, sequence.slot
        filters = (sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k)
        record = (slot, *filters, sampling.seed, self._columns.min_len[slot], sampling.logprobs, 0)
        ids = np.array(sampling.stop_ids if sampling.min_tokens > 0 else (), np.int32)
        stops = np.stack((np.full_like(ids, slot), ids), axis=1).ravel()
        self._admitted[slot] = np.array([record], ADMIT).view(np.int32), stops

    def release(self, slot: int) -> None:
        """The slot's device state ends with the next plan."""
        self._released.append(slot)
        self._admitted.pop(slot, None)

    def build(self, decode: Slots, chunks: list[Chunk]) -> StepPlan:
        """The next plan, and columns and book advanced by it. Without rows it has transfers only, and step is -1."""
        transfers, loads = self._book.tiers.take()
        if len(decode) == 0 and not chunks:
            return StepPlan(-1, StepKey(0, 0), 0, 0, {Column.TRANSFERS: transfers})
        slots, n_query, start, flags = self._rows(decode, chunks)
        columns = {
            Column.ROW_SLOT: slots.astype(np.int32),
            Column.ROW_N_QUERY: n_query,
            Column.ROW_START: start,
            Column.ROW_FLAGS: flags,
            Column.PROMPT_IDS: _joined([self._columns.tokens[c.slot, c.start : c.start + c.n] for c in chunks]),
            Column.ADMIT: _joined([record for record, _ in self._admitted.values()]),
            Column.STOP_IDS: _joined([stops for _, stops in self._admitted.values()]),
            Column.RELEASE: np.array(self._released, np.int32),
            Column.TRANSFERS: transfers,
            **self._book.changes(slots, start, n_query),
        }
        self._admitted.clear()
        self._released.clear()
        gates = int(StepFlag.GATES) if loads else 0  # in the key, so that no recorded step serves it
        wanted = StepKey(len(slots), int(n_query.sum()), q_len=0 if chunks else 1, flags=gates)
        greedy = self._columns.greedy[slots[flags & int(RowFlag.SAMPLE) != 0]].all()
        wants_logprobs = (flags & int(RowFlag.LOGPROBS)).any()
        step_flags = gates | (StepFlag.GREEDY if greedy else 0) | (StepFlag.LOGPROBS if wants_logprobs else 0)
        plan = StepPlan(self._step, self._fit(wanted), int(step_flags), len(decode), columns)
        self._step += 1
        self._columns.planned[slots] = start + n_query
        self._columns.in_flight[slots] += 1
        return plan

    def _rows(self, decode: Slots, chunks: list[Chunk]) -> tuple[Slots, Ints, Ints, Ints]:
        columns, n_query = self._columns, np.ones(len(decode), np.int32)
        if not chunks:
            return decode, n_query, columns.planned[decode], columns.row_flags[decode]
        prompt = np.array([(c.slot, c.n, c.start, c.last) for c in chunks], np.int32)
        slots = np.concatenate((decode, prompt[:, 0]))
        flags = columns.row_flags[slots]
        flags[len(decode) :] |= RowFlag.PROMPT
        flags[len(decode) :][prompt[:, 3] == 0] &= ~(RowFlag.SAMPLE | RowFlag.LOGPROBS)
        start = np.concatenate((columns.planned[decode], prompt[:, 2]))
        return slots, np.concatenate((n_query, prompt[:, 1])), start, flags


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else EMPTY
