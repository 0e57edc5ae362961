"""Writes docs/conformance/full.json from the JUnit files of `make full`: what ran, what it ran on, how it ended.

Usage: python -m tools.full_report RESULTS.xml … Counts tests by folder; a failure makes the exit code 1. A test that
is in a later file, too, counts with that result, and is listed under "repeated" with its first one.
"""

from __future__ import annotations

import json
import platform
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from importlib.metadata import distributions
from typing import Any

from tools.dists import ROOT

TARGET = ROOT / "docs" / "conformance" / "full.json"
NOTED = ("torch", "numpy", "transformers", "tokenizers", "pytest", "hypothesis")


def folder(case: ElementTree.Element) -> str:
    """The test folder of a case: "tests/engine", "plugins/cache_radix/tests"."""
    parts = case.get("classname", "").split(".")
    return "/".join(parts[: 3 if parts[0] == "plugins" else 2])


def outcome(case: ElementTree.Element) -> str:
    """passed, failed or skipped; an error while setting up is a failure."""
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def summarise(cases: Iterable[ElementTree.Element]) -> dict[str, Any]:
    """Counts and seconds by folder, and the names of all that did not pass."""
    folders: dict[str, dict[str, Any]] = {}
    others: list[dict[str, str]] = []
    for case in cases:
        row = folders.setdefault(folder(case), {"passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0})
        result = outcome(case)
        row[result] += 1
        row["seconds"] = round(row["seconds"] + float(case.get("time", 0)), 2)
        if result != "passed":
            others.append({"test": f"{case.get('classname')}::{case.get('name')}", "outcome": result})
    return {"folders": dict(sorted(folders.items())), "not_passed": others}


def main() -> int:
    """Write the report."""
    by_name: dict[tuple[str | None, str | None], ElementTree.Element] = {}
    repeated = []
    for path in sys.argv[1:]:
        for case in ElementTree.parse(path).iter("testcase"):
            name = case.get("classname"), case.get("name")
            if path != sys.argv[1] and name in by_name:
                repeated.append({"test": f"{name[0]}::{name[1]}", "first": outcome(by_name[name])})
            by_name[name] = case
    cases = list(by_name.values())
    versions = {dist.metadata["Name"].lower(): dist.version for dist in distributions()}
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "command": "make full",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": {name: versions.get(name, "absent") for name in NOTED},
        "tests": len(cases),
        **summarise(cases),
        "repeated": repeated,
    }
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(json.dumps(report, indent=1) + "\n")
    failed = sum(row["failed"] for row in report["folders"].values())
    print(f"{TARGET.relative_to(ROOT)}: {len(cases)} tests, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
