"""A claim, its goal and the measured value, as a table and as plain data. Judges nothing by exit code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_HOLDS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True)
class Finding:
    """`value` is the median where there are several; None means it could not be measured."""

    claim: str
    sign: str
    goal: float
    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the value reaches the goal; None when there is no value."""
        return None if self.value is None else _HOLDS[self.sign](self.value, self.goal)

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return vars(self) | {"met": self.met}


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """One row a claim."""
    table = Table("claim", "goal", "value", "met")
    answers = {True: "yes", False: "no", None: "not measured"}
    for f in findings:
        table.add_row(f.claim, f"{f.sign} {f.goal:g} {f.unit}", _value(f), answers[f.met])
    console.print(table)


def _value(finding: Finding) -> str:
    if finding.value is None:
        return "-"
    if finding.low is None or finding.high is None:
        return f"{finding.value:.3g}"
    return escape(f"{finding.value:.4g} [{finding.low:.4g}, {finding.high:.4g}]")
