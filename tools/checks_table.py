"""The checks of a kind as a table for the page of its contract: each id, its level and the clause that it tests.

Knows the suite's catalogue and Markdown; runs no check.
"""

from __future__ import annotations

from srtkit_conformance.catalogue import KINDS, checks_for

HEAD = """## Checks

What the conformance suite asks of every plugin of this kind: `srt conformance run {kind}:NAME`. Why a check usually
fails says `srt conformance explain ID`.

| check | level | clause |
| --- | --- | --- |
"""


def section(kind: str) -> str:
    """The end of a contract's page; "" for a kind that the suite does not certify."""
    if kind not in KINDS:
        return ""
    rows = [f"| `{one.id}` | {one.level} | {_cell(one.clause)} |" for one in checks_for(kind)]
    return "\n".join([HEAD.format(kind=kind) + rows[0], *rows[1:], ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
