"""A report as JUnit XML: what every CI reads. Waived is skipped, not run is an error, the verdict is a property."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from srtkit_conformance.report import Report
from srtkit_conformance.result import Result


def junit(report: Report) -> bytes:
    """One suite, named for the plugin; a case for each check."""
    counts = report.counts()
    totals = {
        "tests": str(len(report.checks)),
        "failures": str(counts.get("fail", 0)),
        "errors": str(counts.get("not-run", 0)),
        "skipped": str(counts.get("waived", 0)),
        "time": f"{report.seconds:.3f}",
    }
    root = Element("testsuites", totals)
    part = f"{report.plugin.kind}:{report.plugin.name}"
    suite = SubElement(root, "testsuite", {"name": part, "timestamp": report.started, **totals})
    for one in report.checks:
        _add(suite, part, one)
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True))


def _add(suite: Element, part: str, one: Result) -> None:
    case = SubElement(suite, "testcase", {"classname": part, "name": one.id, "time": f"{one.seconds:.3f}"})
    properties = SubElement(case, "properties")
    for name, value in {"verdict": one.verdict, "clause": one.clause, "level": one.level, **one.figures}.items():
        SubElement(properties, "property", {"name": name, "value": _printable(str(value))})
    if one.verdict in ("fail", "not-run"):
        tag = "failure" if one.verdict == "fail" else "error"
        message = one.message.partition("\n")[0]
        problem = SubElement(case, tag, {"message": _printable(message), "type": one.verdict})
        problem.text = _printable(f"{one.message}\nobserved {one.observed}, limit {one.limit}\nagain: {one.replay}")
    if one.verdict == "waived":
        SubElement(case, "skipped", {"message": _printable(one.waiver)})


def _printable(text: str) -> str:
    """XML has no place for control characters, which a plugin's output may hold."""
    return "".join(one for one in text if one.isprintable() or one in "\n\t")
