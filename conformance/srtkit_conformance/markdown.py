"""A report as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator

from srtkit_conformance.report import Report
from srtkit_conformance.result import Result


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
        *(f"| {cell(name)} | {cell(_answer(value))} |" for name, value in _declared(report)),
    ]
    return "\n".join(lines) + "\n"


def _row(one: Result) -> str:
    figures = ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in one.figures.items()
    )
    return f"| `{one.id}` | {one.level} | {one.verdict} | {cell(figures)} | {cell(one.clause)} |"


def _notes(report: Report) -> Iterator[str]:
    """What is to be said of checks that did not just pass."""
    told = [one for one in report.checks if one.verdict != "pass"]
    if not told:
        return
    yield "## Notes"
    yield ""
    for one in told:
        yield f"- `{one.id}` {one.verdict}: {cell(one.waiver or one.message)}"
    yield ""


def _declared(report: Report) -> list[tuple[str, object]]:
    declared = report.plugin.declared
    return list(declared.items()) if isinstance(declared, dict) else [("", declared)]


def _answer(value: object) -> str:
    if value is True:
        return "yes"
    return value if isinstance(value, str) else json.dumps(value)


def cell(text: str) -> str:
    """What can stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")
