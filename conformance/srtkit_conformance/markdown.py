"""A report, and the kill matrix of the self-test, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from srtkit_conformance.report import Report
from srtkit_conformance.result import Result
from srtkit_conformance.selftest import Proof, Row


def report_page(report: Report) -> str:
    """The report to be read: circumstances, a row a check, declarations, waivers."""
    plugin, device, versions = report.plugin, report.device, report.versions
    level = "single checks" if report.level_reached is None else f"level {report.level_reached} of {report.level_asked}"
    lines = [
        f"# {plugin.kind}:{plugin.name}: {level}",
        "",
        f"- plugin: {plugin.distribution} {plugin.version}, contract {plugin.contract}, files `{plugin.digest[:16]}`",
        f"- device: {device.platform}:{device.index}, {device.name} ({device.architecture})",
        f"- with: srtkit-core {versions.core}, suite {report.suite.version}, Python {versions.python}, "
        f"torch {versions.torch or 'absent'}",
        f"- run: {report.started}, {report.seconds:.1f} s, seed {report.seed}",
        "",
        "| check | level | verdict | figures | clause |",
        "| --- | --- | --- | --- | --- |",
        *(_row(one) for one in report.checks),
        "",
        *_notes(report),
        "## Declared",
        "",
        "| capability | answer |",
        "| --- | --- |",
        *(f"| {_cell(name)} | {_cell(_answer(value))} |" for name, value in _declared(report)),
    ]
    return "\n".join(lines) + "\n"


def kill_matrix(proofs: Sequence[Proof]) -> str:
    """Mutants × checks for each kind: ● the named killer, ○ another check that failed, too."""
    pages = ["# Kill matrix", ""]
    for proof in proofs:
        pages += [f"## {proof.kind}", "", *_matrix(proof), ""]
    return "\n".join(pages)


def _matrix(proof: Proof) -> Iterator[str]:
    shown = [one for one in proof.checks if any(one in row.failed for row in proof.rows)]
    short = [one.removeprefix(f"{proof.kind}.") for one in shown]
    yield f"| mutant | {' | '.join(short)} |"
    yield "| --- |" + " --- |" * len(short)
    for row in proof.rows:
        cells = " | ".join(_mark(row, one) for one in shown)
        yield f"| {row.mutant.id}{' (legal)' if row.mutant.legal else ''}: {_cell(row.mutant.sentence)} | {cells} |"
    if proof.uncovered:
        yield ""
        yield f"Not the named killer of any mutant: {', '.join(f'`{one}`' for one in proof.uncovered)}."


def _mark(row: Row, check_id: str) -> str:
    if check_id not in row.failed:
        return ""
    return "●" if check_id in row.mutant.killed_by[:1] else "○"


def _row(one: Result) -> str:
    figures = ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in one.figures.items()
    )
    return f"| `{one.id}` | {one.level} | {one.verdict} | {_cell(figures)} | {_cell(one.clause)} |"


def _notes(report: Report) -> Iterator[str]:
    """What is to be said of checks that did not just pass."""
    told = [one for one in report.checks if one.verdict != "pass"]
    if not told:
        return
    yield "## Notes"
    yield ""
    for one in told:
        yield f"- `{one.id}` {one.verdict}: {_cell(one.waiver or one.message)}"
    yield ""


def _declared(report: Report) -> list[tuple[str, object]]:
    declared = report.plugin.declared
    return list(declared.items()) if isinstance(declared, dict) else [("", declared)]


def _answer(value: object) -> str:
    if value is True:
        return "yes"
    return value if isinstance(value, str) else json.dumps(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
