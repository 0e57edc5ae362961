"""A device for scheduler tests: no torch, but real pages. What it samples depends on every token of the prefix.

Each KV entry holds a hash of the whole prefix up to its token, read from the page before it. If a page is
reused too early, shared wrongly or written twice, a hash changes and with it every later token. Every component
has entries of its own; of a window all entries in it are read, of a state slot what stands in it.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import numpy as np

from srtkit.scheduler.limits import SchedulerLimits
from srtkit.scheduler.scheduler import StepOutput
from srtkit.spec.kv import Component
from srtkit.spec.step_plan import ADMIT, Column, RowFlag, StepPlan

VOCAB = 50
MASK = (1 << 61) - 1


def mix(prefix: int, token: int) -> int:
    """The hash of a prefix one token longer."""
    return (prefix * 1_000_003 + token * 7_919 + 12_345) & MASK


def next_token(prefix: int, forbidden: Collection[int] = ()) -> int:
    """What follows a prefix, when some tokens may not."""
    token = (prefix >> 7) % VOCAB
    while token in forbidden:
        token = (token + 1) % VOCAB
    return token


def expected(prompt: list[int], max_tokens: int, stop_ids: tuple[int, ...], min_tokens: int, limit: int) -> list[int]:
    """The continuation of a prompt, by definition."""
    prefix, out = 0, []
    for token in prompt:
        prefix = mix(prefix, token)
    while len(out) < max_tokens and len(prompt) + len(out) < limit:
        token = next_token(prefix, stop_ids if len(out) < min_tokens else ())
        out.append(token)
        prefix = mix(prefix, token)
        if token in stop_ids:
            break
    return out


class SimulatedDevice:
    """Executes plans in launch order, as a stream would. Every plan passes through its bytes.

    `kv[component][page]` are a page's entries, (hash, token); of a slot component one hash.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self.page_size = limits.page_size
        self.inner_snapshots = limits.inner_snapshots
        self.components = list(limits.pools)
        slots = limits.max_rows + 1
        self.tables = [np.zeros((slots, limits.max_pages), np.int32) for _ in self.components]
        self.last_token = np.zeros(slots, np.int64)
        self.min_position = np.zeros(slots, np.int64)
        self.stop_ids: list[set[int]] = [set() for _ in range(slots)]
        self.kv: list[list] = []
        for component, pages in limits.pools.items():
            page = [(-1, 0)] * limits.page_size if component.kind == "paged" else [-1]
            self.kv.append([page.copy() for _ in range(pages + 1)])

    def forward(self, plan: StepPlan) -> tuple[StepPlan, StepOutput]:
        """Run a step: KV is written at once, the output is for a later commit."""
        plan = StepPlan.unpack(plan.pack())
        self._take_over(plan)
        prompt = iter(plan.column(Column.PROMPT_IDS).tolist())
        ids = np.full(plan.rows, -1, np.int32)
        snapshots = plan.records(Column.SNAPSHOTS, 3).tolist()
        rows = zip(
            plan.column(Column.ROW_SLOT).tolist(),
            plan.column(Column.ROW_N_QUERY).tolist(),
            plan.column(Column.ROW_START).tolist(),
            plan.column(Column.ROW_FLAGS).tolist(),
            strict=True,
        )
        for row, (slot, n, start, flags) in enumerate(rows):
            assert (flags & RowFlag.PROMPT == 0) == (row < plan.leading)
            wanted = {offset: target for one, offset, target in snapshots if one == row}
            assert self.inner_snapshots or wanted.keys() <= {n}
            for i in range(n):
                token = next(prompt) if flags & RowFlag.PROMPT else int(self.last_token[slot])
                prefix = self._consume(slot, start + i, token)
                if i + 1 in wanted:
                    self._state(wanted.pop(i + 1))[0] = prefix
            assert not wanted, "a snapshot beyond its row"
            if flags & RowFlag.SAMPLE:
                early = start + n < self.min_position[slot]
                ids[row] = next_token(prefix, self.stop_ids[slot] if early else ())
                self.last_token[slot] = ids[row]
        assert next(prompt, None) is None
        return plan, StepOutput(ids)

    def _take_over(self, plan: StepPlan) -> None:
        for slot in plan.column(Column.RELEASE):
            for table in self.tables:
                table[slot] = 0
        for record in plan.column(Column.ADMIT).view(ADMIT):
            slot = record["slot"]
            assert slot > 0
            self.min_position[slot] = record["min_position"]
            self.stop_ids[slot] = set()
        for slot, stop in plan.records(Column.STOP_IDS, 2).tolist():
            self.stop_ids[slot].add(stop)
        writes = plan.records(Column.PAGE_WRITES, 4)
        assert len(np.unique(writes[:, :3], axis=0)) == len(writes), "one table entry is written twice"
        for component, slot, index, page in writes:
            self.tables[component][slot, index] = page
        zero, copies = plan.records(Column.ZERO, 2), plan.records(Column.COPIES, 3)
        states = [*zero[:, 1].tolist(), *copies[:, 2].tolist()]
        assert len(set(states)) == len(states) and not {*states} & {*copies[:, 1].tolist()}
        for component, page in zero:
            self.kv[component][page][0] = 0
        for component, source, target in copies:
            self.kv[component][target][0] = self.kv[component][source][0]

    def _consume(self, slot: int, position: int, token: int) -> int:
        """Write a token's entries in every component; the hash that all of them give for its prefix."""
        prefixes = set()
        for component, table, kv in zip(self.components, self.tables, self.kv, strict=True):
            row = table[slot]
            if component.kind == "slot":
                assert row[0] > 0, "a sequence has no state slot"
                prefix = kv[row[0]][0] = mix(kv[row[0]][0], token)
            else:
                prefix = self._attend(component, row, kv, position, token)
            prefixes.add(prefix)
        assert len(prefixes) == 1, "the components disagree about a prefix"
        return prefixes.pop()

    def _attend(self, component: Component, row: np.ndarray, kv: list, position: int, token: int) -> int:
        """Store a token, and read every entry that it sees: each must follow from the one before it."""
        pages, offsets = row[np.arange(position + 1) // self.page_size], np.arange(position + 1) % self.page_size
        first = max(0, position - component.window + 1) if component.reach == "window" else 0
        assert (pages[first:] > 0).all(), "a visible token has no page"
        seen = [kv[page][offset] for page, offset in zip(pages[first:-1], offsets[first:-1], strict=True)]
        assert seen or not position, "a window of one token: the device cannot follow"
        before = seen[-1][0] if seen else 0
        for (earlier, _), (later, said) in pairwise(seen):
            assert later == mix(earlier, said), "a page was overwritten"
        prefix = mix(before, token)
        kv[pages[-1]][offsets[-1]] = (prefix, token)
        return prefix

    def _state(self, page: int) -> list[int]:
        (kv,) = (kv for component, kv in zip(self.components, self.kv, strict=True) if component.kind == "slot")
        return kv[page]
