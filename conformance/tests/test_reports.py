"""The report and its forms: JSON and back, Markdown, JUnit, badge, difference."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance.tests.conftest import toy
from srtkit.spec.errors import ConfigError
from srtkit.spec.versions import CONTRACTS
from srtkit_conformance.badge import badge
from srtkit_conformance.diff import differences
from srtkit_conformance.digest import distribution_digest
from srtkit_conformance.junit import junit
from srtkit_conformance.markdown import report_page
from srtkit_conformance.report import Clock, Report, make_report, read_report, write_report
from srtkit_conformance.result import Result
from srtkit_conformance.runner import Runner
from srtkit_conformance.suite import run_checks

WAIVED = Result("prefix_cache.toy_known", 2, "toy/1.0: it is known", "waived", waiver="a known failure")
NOT_RUN = Result("prefix_cache.toy_later", 2, "toy/1.0: it is late", "not-run", message="pytest did not run it")


@pytest.fixture
def report(runner: Runner) -> Report:
    """One check of every verdict."""
    checks = [toy(name) for name in ("passes", "shares", "pages", "fails")]
    results = run_checks(checks, runner, {}, lambda result: None)
    return make_report(runner.target, [*results, WAIVED, NOT_RUN], 2, {}, Clock())


def test_it_names_plugin_device_versions_and_suite(report: Report) -> None:
    plugin = report.plugin
    assert (plugin.kind, plugin.name, plugin.distribution) == ("prefix_cache", "chunk", "srtkit-plugin-cache-chunk")
    assert plugin.version == importlib.metadata.version("srtkit-plugin-cache-chunk")
    assert (plugin.contract, report.versions.core_contract) == ("1.0", CONTRACTS["prefix_cache"].version)
    assert plugin.digest == distribution_digest("srtkit-plugin-cache-chunk")
    assert plugin.declared["page_sizes"] == "1..256"
    assert plugin.declared["shares"] == "no: every sequence keeps its own pages"
    assert report.device.platform == "cpu"
    assert report.device.memory_bytes > 0
    assert report.versions.core == importlib.metadata.version("srtkit-core")
    assert report.suite.version == importlib.metadata.version("srtkit-conformance")
    assert (report.seed, report.level_asked, report.level_reached, report.exit_code) == (7, 2, 1, 1)
    assert set(report.counts()) == {"pass", "refused", "informational", "fail", "waived", "not-run"}


def test_json_and_back(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    write_report(report, file)
    assert read_report(file) == report
    assert json.loads(file.read_text())["schema"] == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', "no json"])
def test_another_file_is_no_report(tmp_path: Path, text: str) -> None:
    file = tmp_path / "out.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="no report"):
        read_report(file)


def test_a_report_of_another_schema_is_refused_by_its_number(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    write_report(replace(report, schema=9), file)
    with pytest.raises(ConfigError, match="schema 9"):
        read_report(file)


def test_junit_counts_what_it_lists(report: Report) -> None:
    root = ElementTree.fromstring(junit(report))
    (suite,) = root
    cases = suite.findall("testcase")
    assert root.tag == "testsuites"
    assert suite.attrib["name"] == "prefix_cache:chunk"
    assert [case.attrib["name"] for case in cases] == [one.id for one in report.checks]
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[name]) == sum(case.find(tag) is not None for case in cases) == 1
    assert int(suite.attrib["tests"]) == len(cases)
    verdicts = [case.find("properties/property[@name='verdict']") for case in cases]
    assert [one.attrib["value"] for one in verdicts if one is not None] == [one.verdict for one in report.checks]


def test_junit_holds_no_control_characters(report: Report) -> None:
    """The failing toy prints an escape sequence, which no XML may contain."""
    failure = ElementTree.fromstring(junit(report)).find(".//failure")
    assert failure is not None
    assert "last words" in str(failure.text)
    assert "\x1b" not in str(failure.text)


def test_the_page_has_a_row_a_check_and_a_note_for_all_but_passes(report: Report) -> None:
    lines = report_page(report).splitlines()
    assert lines[0] == "# prefix_cache:chunk: level 1 of 2"
    for one in report.checks:
        assert sum(line.startswith(f"| `{one.id}` | {one.level} | {one.verdict} |") for line in lines) == 1
        assert sum(line.startswith(f"- `{one.id}` {one.verdict}: ") for line in lines) == (one.verdict != "pass")
    assert "| shares | no: every sequence keeps its own pages |" in lines


def test_the_badge_says_contract_level_and_month(report: Report) -> None:
    dated = replace(report, started="2026-11-05T12:00:00+00:00")
    assert badge(dated) == {
        "schemaVersion": 1,
        "label": "srtkit prefix_cache",
        "message": "1.0 · L1 · 2026.11",
        "color": "yellow",
    }
    assert badge(replace(dated, level_reached=2))["color"] == "brightgreen"
    for level in (-1, None):
        assert badge(replace(dated, level_reached=level))["message"] == "not certified · 2026.11"


def with_verdicts(report: Report, changes: Sequence[tuple[str, str]]) -> Report:
    new = {f"prefix_cache.toy_{name}": verdict for name, verdict in changes}
    checks = tuple(replace(one, verdict=new.get(one.id, one.verdict)) for one in report.checks)  # type: ignore[arg-type]
    return replace(report, checks=checks)


def test_no_difference(report: Report) -> None:
    assert differences(report, report) == ([], False)


def test_a_difference_says_what_changed_and_whether_for_the_worse(report: Report) -> None:
    worse = with_verdicts(report, [("passes", "fail")])
    assert differences(report, worse) == (["prefix_cache.toy_passes: pass → fail"], True)
    assert differences(worse, report) == (["prefix_cache.toy_passes: fail → pass"], False)
    assert differences(report, replace(report, level_reached=0)) == (["level: 1 → 0"], True)


def test_a_changed_declaration_and_a_new_check_are_differences(report: Report) -> None:
    declared = {**report.plugin.declared, "shares": True}
    changed = replace(report, plugin=replace(report.plugin, declared=declared), checks=report.checks[1:])
    lines, worse = differences(changed, report)
    assert lines == [
        "declared shares: True → no: every sequence keeps its own pages",
        "prefix_cache.toy_passes: absent → pass",
    ]
    assert not worse
