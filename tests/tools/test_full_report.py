"""The report of `make full`: counts by folder, what did not pass, and what ran a second time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import full_report

FIRST = """<testsuites><testsuite>
<testcase classname="tests.engine.test_a" name="fine" time="1.5"/>
<testcase classname="plugins.mine.tests.test_b" name="bad" time="2"><failure/></testcase>
<testcase classname="plugins.mine.tests.test_b" name="odd" time="0"><skipped/></testcase>
</testsuite></testsuites>"""
AGAIN = """<testsuites><testsuite>
<testcase classname="plugins.mine.tests.test_b" name="bad" time="1"/>
</testsuite></testsuites>"""


def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *results: str) -> tuple[int, dict[str, object]]:
    files = [tmp_path / f"{i}.xml" for i in range(len(results))]
    for file, text in zip(files, results, strict=True):
        file.write_text(text)
    monkeypatch.setattr(full_report, "TARGET", tmp_path / "full.json")
    monkeypatch.setattr(full_report, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["full_report", *map(str, files)])
    code = full_report.main()
    return code, json.loads((tmp_path / "full.json").read_text())


def test_a_failure_is_named_and_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = report(tmp_path, monkeypatch, FIRST)
    assert code == 1
    assert found["tests"] == 3
    assert found["folders"] == {
        "plugins/mine/tests": {"passed": 0, "failed": 1, "skipped": 1, "seconds": 2.0},
        "tests/engine": {"passed": 1, "failed": 0, "skipped": 0, "seconds": 1.5},
    }
    outcomes = [(one["test"], one["outcome"]) for one in found["not_passed"]]  # type: ignore[attr-defined]
    assert outcomes == [("plugins.mine.tests.test_b::bad", "failed"), ("plugins.mine.tests.test_b::odd", "skipped")]


def test_the_later_result_counts_and_the_first_stays_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = report(tmp_path, monkeypatch, FIRST, AGAIN)
    assert code == 0
    assert found["tests"] == 3
    assert found["repeated"] == [{"test": "plugins.mine.tests.test_b::bad", "first": "failed"}]
