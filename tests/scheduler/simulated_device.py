"""A device for scheduler tests: no torch, but real pages. What it samples depends on every token of the prefix.

Each KV entry holds a hash of the whole prefix up to its token, read from the page before it. If a page is
reused too early, shared wrongly or written twice, a hash changes and with it every later token.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from srtkit.scheduler.scheduler import StepOutput
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
    """Executes plans in launch order, as a stream would. Every plan passes through its bytes."""

    def __init__(self, max_running: int, pages: int, page_size: int, max_pages: int) -> None:
        self.page_size = page_size
        self.table = np.zeros((max_running + 1, max_pages), np.int32)
        self.last_token = np.zeros(max_running + 1, np.int64)
        self.min_position = np.zeros(max_running + 1, np.int64)
        self.stop_ids: list[set[int]] = [set() for _ in range(max_running + 1)]
        self.kv = [[-1] * page_size for _ in range(pages + 1)]

    def forward(self, plan: StepPlan) -> tuple[StepPlan, StepOutput]:
        """Run a step: KV is written at once, the output is for a later commit."""
        plan = StepPlan.unpack(plan.pack())
        for slot in plan.column(Column.RELEASE):
            self.table[slot] = 0
        for record in plan.column(Column.ADMIT).view(ADMIT):
            slot = record["slot"]
            assert slot > 0
            self.min_position[slot] = record["min_position"]
            self.stop_ids[slot] = set()
        for slot, stop in plan.records(Column.STOP_IDS, 2).tolist():
            self.stop_ids[slot].add(stop)
        writes = plan.records(Column.PAGE_WRITES, 4)
        assert len(np.unique(writes[:, 1:3], axis=0)) == len(writes), "one table entry is written twice"
        for component, slot, index, page in writes:
            assert component == 0 and page > 0
            self.table[slot, index] = page
        prompt = iter(plan.column(Column.PROMPT_IDS).tolist())
        ids = np.full(plan.rows, -1, np.int32)
        rows = zip(
            plan.column(Column.ROW_SLOT).tolist(),
            plan.column(Column.ROW_N_QUERY).tolist(),
            plan.column(Column.ROW_START).tolist(),
            plan.column(Column.ROW_FLAGS).tolist(),
            strict=True,
        )
        for row, (slot, n, start, flags) in enumerate(rows):
            assert (flags & RowFlag.PROMPT == 0) == (row < plan.leading)
            prefix = self._entry(slot, start - 1) if start else 0
            for position in range(start, start + n):
                token = next(prompt) if flags & RowFlag.PROMPT else int(self.last_token[slot])
                prefix = mix(prefix, token)
                page = self.table[slot, position // self.page_size]
                assert page > 0, "a token has no page"
                self.kv[page][position % self.page_size] = prefix
            if flags & RowFlag.SAMPLE:
                early = start + n < self.min_position[slot]
                ids[row] = next_token(prefix, self.stop_ids[slot] if early else ())
                self.last_token[slot] = ids[row]
        assert next(prompt, None) is None
        return plan, StepOutput(ids)

    def _entry(self, slot: int, position: int) -> int:
        return self.kv[self.table[slot, position // self.page_size]][position % self.page_size]
