"""StepPlan: what one step does, as int32 columns in one contiguous little-endian buffer.

The scheduler writes it, every rank reads the same bytes, and nothing else travels to a rank. It knows
slots, pages and tokens; no text, no request ids, no tensors. Layout of the buffer, in int32 words:
header (HEADER_WORDS), offset table (2 words a column: number, end), then the columns one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt

from srtkit.spec.errors import EngineError

Ints = npt.NDArray[np.int32]

MAGIC = 0x53525431  # "SRT1"
SCHEMA = 1
HEADER_WORDS = 12
EMPTY: Ints = np.empty(0, np.int32)


class Column(IntEnum):
    """Column numbers. A reader that meets another number refuses the plan: nothing is skipped.

    4, 13 and 14 are kept for drafts, prefix groups and control.
    """

    ROW_SLOT = 1  # per row: row slot; slot 0 is padding
    ROW_N_QUERY = 2  # per row: tokens this step
    ROW_START = 3  # per row: position of its first token; upper bound unless EXACT is set
    ROW_FLAGS = 5  # per row: RowFlag
    PROMPT_IDS = 6  # ids of this step's prompt tokens, row after row
    ADMIT = 7  # per admitted slot: one record of dtype ADMIT
    RELEASE = 8  # slots whose device state ends before this step
    PAGE_WRITES = 9  # (component, slot, index, page); page 0: let go. A slot component's index 0: the state slot
    COPIES = 10  # (component, source page, target page), before the step
    ZERO = 11  # (component, page), before the step and its copies
    TRANSFERS = 12  # tier copies that start with the step, see spec.tiers
    STOP_IDS = 15  # (slot, token id): stop tokens of admitted slots, suppressed before min_tokens
    SNAPSHOTS = 16  # (row, offset, state slot): the row's state after so many of its tokens goes there


KNOWN_COLUMNS = frozenset(int(number) for number in Column)


class RowFlag(IntFlag):
    """What a row of this step is."""

    SAMPLE = 1  # a token is sampled from its last position
    PROMPT = 2  # its ids come from PROMPT_IDS, else from last_token[slot]
    EXACT = 8  # ROW_START is the exact device length
    LOGPROBS = 32  # log-probabilities of this row's sample are wanted


class StepFlag(IntFlag):
    """What a whole step needs beyond the common path."""

    GATES = 4  # consumes a running tier load
    LOGPROBS = 16
    GREEDY = 64  # every sampling row is greedy


# Stop ids a row slot can hold.
MAX_STOP_IDS = 16
_ADMIT_NAMES = ["slot", "temperature", "top_p", "min_p", "top_k", "seed", "min_position", "logprobs", "adapter"]
# One ADMIT record. Stop ids are suppressed while the sampled token's position is below `min_position`;
# `logprobs` is how many of the likeliest are wanted, -1 for none; temperature 0 is greedy.
ADMIT = np.dtype({"names": _ADMIT_NAMES, "formats": ["<i4", "<f4", "<f4", "<f4", "<i4", "<i8", "<i4", "<i4", "<i4"]})


@dataclass(frozen=True)
class StepKey:
    """The shape a step runs at, after padding. `q_len` is 0 for a mixed step."""

    rows: int
    tokens: int
    q_len: int = 0
    flags: int = 0


@dataclass(frozen=True)
class StepPlan:
    """One step. `leading` rows come first and all have the decode query length.

    `columns` holds int32 views; a missing column is empty. Two plans with equal content have equal
    bytes. `pack` and `unpack` are inverse.
    """

    step: int
    key: StepKey
    flags: int
    leading: int
    columns: Mapping[Column, Ints] = field(default_factory=dict)

    def column(self, number: Column) -> Ints:
        """The int32 column, empty when the plan has none. Do not write to it."""
        return self.columns.get(number, EMPTY)

    def records(self, number: Column, words: int) -> Ints:
        """The column as [n, words]."""
        return self.column(number).reshape(-1, words)

    @property
    def rows(self) -> int:
        """Rows without padding."""
        return len(self.column(Column.ROW_SLOT))

    @property
    def tokens(self) -> int:
        """Query tokens without padding."""
        return int(self.column(Column.ROW_N_QUERY).sum())

    def pack(self) -> bytes:
        """The plan as one little-endian buffer."""
        used = [(number, values) for number, values in sorted(self.columns.items()) if len(values)]
        start = HEADER_WORDS + 2 * len(used)
        ends = start + np.cumsum([len(values) for _, values in used]) if used else EMPTY
        total = int(ends[-1]) if used else start
        words = np.zeros(total, "<i4")
        key = self.key
        words[:HEADER_WORDS] = (
            *(MAGIC, SCHEMA, self.step, self.flags, self.leading, len(used)),
            *(key.rows, key.tokens, key.q_len, key.flags, 0, total),
        )
        for i, (number, values) in enumerate(used):
            words[HEADER_WORDS + 2 * i : HEADER_WORDS + 2 * i + 2] = (number, ends[i])
            words[ends[i] - len(values) : ends[i]] = values
        return words.tobytes()

    @staticmethod
    def unpack(buffer: bytes | memoryview) -> StepPlan:
        """Read a packed plan without copying the columns.

        Raises `EngineError` when the buffer is not a plan of this schema, is truncated, or holds a
        column this core does not know.
        """
        words: Ints = np.frombuffer(buffer, "<i4") if len(buffer) % 4 == 0 else EMPTY
        if len(words) < HEADER_WORDS or words[0] != MAGIC or words[1] != SCHEMA:
            raise EngineError("step plan", "the buffer is not a plan of schema 1", "use equal versions on all ranks")
        if words[HEADER_WORDS - 1] != len(words):
            raise EngineError("step plan", f"truncated: {len(words)} of {words[HEADER_WORDS - 1]} words")
        n_columns = int(words[5])
        columns: dict[Column, Ints] = {}
        begin = HEADER_WORDS + 2 * n_columns
        for i in range(n_columns):
            number, end = (int(word) for word in words[HEADER_WORDS + 2 * i : HEADER_WORDS + 2 * i + 2])
            if number not in KNOWN_COLUMNS or not begin <= end <= len(words):
                raise EngineError("step plan", f"unknown or damaged column {number}", "use equal versions on all ranks")
            columns[Column(number)] = words[begin:end]
            begin = end
        key = StepKey(*(int(word) for word in words[6:10]))
        return StepPlan(int(words[2]), key, int(words[3]), int(words[4]), columns)
