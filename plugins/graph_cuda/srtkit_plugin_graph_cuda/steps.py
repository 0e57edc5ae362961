"""Which steps are captured: decode steps in buckets of rows, mixed steps in buckets of tokens. Imports no torch.

Buckets lie closer to each other than powers of two: a padding row costs what a row costs, a padding token nearly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.graph_runner import CaptureLevel
from srtkit.spec.step_plan import StepKey

FEW = (1, 2, 4)
NEAR, FAR = 8, 16
"""Distance of buckets, in rows, up to 64 rows and beyond."""
FEWEST_TOKENS = 64
"""The smallest bucket of mixed steps, and the least distance of two."""
AN_OCTAVE = 4
"""Buckets of tokens from one power of two to the next."""


class Options(BaseModel):
    """`[graph_runner.options]` of each of the runners."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_rows: int = Field(256, ge=1, description="the most sequences of a step that is captured")
    max_tokens: int = Field(8192, ge=0, description="the largest step with prompts that is captured; 0 captures none")


def levels(facts: DeviceFacts) -> frozenset[CaptureLevel]:
    """Every kind of step, where the device captures."""
    return frozenset({"one_token", "uniform", "any"} if facts.graphs else {"never"})


def keys(limits: Limits, level: CaptureLevel, options: BaseModel) -> Sequence[StepKey]:
    """Decode steps from the level "one_token" on; with "any" mixed ones, which have a row for padding besides."""
    assert isinstance(options, Options)
    if level == "never":
        return ()
    largest = min(limits.max_rows, options.max_rows)
    buckets = {*FEW, *range(NEAR, 65, NEAR), *range(64, largest, FAR)}
    decode = [StepKey(rows, rows, q_len=1) for rows in sorted({rows for rows in buckets if rows < largest} | {largest})]
    tokens = min(limits.max_tokens, options.max_tokens)
    if level != "any" or tokens == 0:
        return decode
    return decode + [StepKey(largest + 1, bucket) for bucket in _ladder(tokens)]


def fit(wanted: StepKey, keys: Sequence[StepKey]) -> StepKey | None:
    """The smallest bucket of the same kind with room."""
    return min((key for key in keys if _holds(key, wanted)), key=lambda key: (key.tokens, key.rows), default=None)


def memory(keys: Sequence[StepKey], row_bytes: int, token_bytes: int) -> int:
    """Two sets of outputs, as with one step in flight, and as much again; what the largest step needs meanwhile."""
    rows, tokens = (max(sizes, default=0) for sizes in ([key.rows for key in keys], [key.tokens for key in keys]))
    return 3 * rows * row_bytes + tokens * token_bytes


def _ladder(last: int) -> Iterator[int]:
    """64, 128, …, then four an octave, and `last`."""
    bucket = FEWEST_TOKENS
    while bucket < last:
        yield bucket
        bucket += max(FEWEST_TOKENS, (1 << (bucket.bit_length() - 1)) // AN_OCTAVE)
    yield last


def _holds(key: StepKey, wanted: StepKey) -> bool:
    """Tokens that are over need a padding row; such rows have a decode step's one token each, in a mixed step any."""
    rows, tokens = key.rows - wanted.rows, key.tokens - wanted.tokens
    same = key.q_len == wanted.q_len and key.flags == wanted.flags
    return (
        same and rows >= 0 and (tokens == rows * key.q_len if key.q_len else tokens >= 0 and (rows > 0 or not tokens))
    )
