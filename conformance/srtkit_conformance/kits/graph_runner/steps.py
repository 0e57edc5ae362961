"""Steps that a program is asked for, as plain data: rows with their tokens and slots. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from srtkit.spec.facts import Limits
from srtkit.spec.step_plan import Ints, StepKey

LIMITS = Limits(max_rows=8, max_tokens=32, max_context=64, page_size=16)
VOCABULARY = 50


@dataclass(frozen=True)
class Fill:
    """`ids` row after row; row i has `n_query[i]` of them and the slot `slots[i]`, from 1 on."""

    n_query: tuple[int, ...]
    slots: tuple[int, ...]
    ids: Ints

    def wanted(self) -> StepKey:
        """Its shape without padding."""
        decode = all(n == 1 for n in self.n_query)
        return StepKey(len(self.n_query), sum(self.n_query), int(decode))


def random_fill(rng: np.random.Generator, n_query: Sequence[int]) -> Fill:
    """Any tokens, any slots."""
    slots = rng.permutation(LIMITS.max_rows)[: len(n_query)] + 1
    ids = rng.integers(0, VOCABULARY, sum(n_query)).astype(np.int32)
    return Fill(tuple(n_query), tuple(slots.tolist()), ids)


def padding(key: StepKey) -> Fill:
    """A step of padding rows only: slot 0, q_len tokens each, what is over in the last."""
    n_query = [key.q_len] * key.rows
    n_query[-1] += key.tokens - sum(n_query)
    return Fill(tuple(n_query), (0,) * key.rows, np.zeros(key.tokens, np.int32))


def padded(fill: Fill, key: StepKey) -> Fill:
    """The fill with padding rows up to the key, as core pads."""
    rows, tokens = key.rows - len(fill.n_query), key.tokens - len(fill.ids)
    assert rows >= 0 and tokens >= rows * key.q_len and (rows or not tokens), f"{fill} does not fit {key}"
    if rows == 0:
        return fill
    more = padding(StepKey(rows, tokens, key.q_len))
    ids = np.concatenate((fill.ids, more.ids))
    return Fill(fill.n_query + more.n_query, fill.slots + more.slots, ids)


def fills_for(key: StepKey, rng: np.random.Generator) -> list[Fill]:
    """A full one, a smaller one and the smallest: steps that a captured key can serve, largest first."""
    if key.q_len == 1:
        return [random_fill(rng, [1] * rows) for rows in sorted({key.rows, (key.rows + 1) // 2, 1}, reverse=True)]
    rows = min(key.rows, LIMITS.max_rows)  # the row that is over is for padding
    full = [1] * (rows - 1) + [key.tokens - rows + 1]
    exact = [key.tokens - 1, 1] if key.tokens > 1 and rows > 1 else full
    smaller = [key.tokens - rows - 2, 1] if key.tokens - rows > 3 and rows > 2 else full
    return [random_fill(rng, n_query) for n_query in (full, exact, smaller)]
