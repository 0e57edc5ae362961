"""What came of one check: a verdict and what to say about it. Knows neither plugin nor runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["pass", "fail", "refused", "informational", "waived", "not-run"]
VERDICTS: tuple[Verdict, ...] = ("pass", "refused", "informational", "waived", "fail", "not-run")
GOOD: frozenset[Verdict] = frozenset({"pass", "refused", "informational"})
"""Verdicts that meet a level; `waived` and `not-run` do not."""


@dataclass(frozen=True)
class Result:
    """One check of one run. `observed` and `limit` are text; `replay` is the command that runs it again.

    `waiver` is the reason why a failure is known; its verdict is then `waived`.
    """

    id: str
    level: int
    clause: str
    verdict: Verdict
    seconds: float = 0.0
    message: str = ""
    observed: str = ""
    limit: str = ""
    figures: dict[str, float | int | str] = field(default_factory=dict)
    replay: str = ""
    waiver: str = ""

    @property
    def good(self) -> bool:
        """Whether it meets its level."""
        return self.verdict in GOOD


def level_reached(results: Sequence[Result], asked: int) -> int:
    """The highest level up to `asked` whose checks, and those below, are all good; -1 for none."""
    worst = min((one.level for one in results if not one.good), default=asked + 1)
    return min(worst - 1, asked)
