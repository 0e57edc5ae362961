"""A report in the form that badge services read from an address."""

from __future__ import annotations

from srtkit_conformance.report import Report


def badge(report: Report) -> dict[str, str | int]:
    """Label, message and colour: contract, level reached, and the month of the run."""
    level = report.level_reached
    if level is None or level < 0:
        message, color = "not certified", "red"
    else:
        met = level == report.level_asked
        message, color = f"{report.plugin.contract} · L{level}", "brightgreen" if met else "yellow"
    month = report.started[:7].replace("-", ".")
    return {
        "schemaVersion": 1,
        "label": f"srtkit {report.plugin.kind}",
        "message": f"{message} · {month}",
        "color": color,
    }
