"""A certificate holds for the files that were checked, for a year, and for the contract that it was checked against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from conformance.tests.conftest import Install, Srt
from srtkit.cli.main import main
from srtkit.plugins.registry import discover
from srtkit.spec.versions import CONTRACTS
from srtkit_conformance.body import result_of
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.certificate import VALID_DAYS, standing
from srtkit_conformance.digest import certificate_path
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.light import LightPlugin
from srtkit_conformance.report import Clock, Report, make_report, read_report, write_report

Capture = pytest.CaptureFixture[str]
Edit = Callable[[Report], Report]


@pytest.fixture
def certificate(package: Path, tmp_path: Path) -> Path:
    """A certificate of the toy plugin at level 0, written just now; which checks it lists does not matter here."""
    path = package / "conformance-prefix_cache-toy.json"
    suite = suite_for("prefix_cache")
    target = load_target(Subject("prefix_cache", "toy"), suite, tmp_path)
    results = [result_of(check, "pass") for check in suite.checks() if check.level == 0]
    write_report(make_report(target, results, 0, {}, Clock()), path)
    return path


def said(*, days: int = 0) -> str:
    """What is said of it, `days` from now."""
    now = datetime.now(UTC) + timedelta(days=days, seconds=1)
    return str(standing(discover().find("prefix_cache", "toy"), now))


def test_it_holds_for_a_year(certificate: Path) -> None:
    assert said().startswith("valid, level 0 on cpu:0 (")
    assert said().endswith("), 0 days old")
    assert said(days=1).endswith("), 1 day old")
    assert said(days=VALID_DAYS).startswith("valid, ")
    assert said(days=VALID_DAYS + 1).startswith("expired, level 0 ")


def test_other_files_end_it(certificate: Path) -> None:
    added = certificate.with_name("heavy.py")
    added.write_text("")
    assert said().startswith("other files, level 0 ")
    added.unlink()
    assert said().startswith("valid, ")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda r: replace(r, plugin=replace(r.plugin, version="0.9")), ("other files", "of version 0.9")),
        (lambda r: replace(r, plugin=replace(r.plugin, name="other")), ("not certified", "prefix_cache:other")),
        (lambda r: replace(r, level_reached=-1), ("not certified", "reaches no level")),
        (lambda r: replace(r, level_reached=None), ("not certified", "reaches no level")),
        (
            lambda r: replace(r, versions=replace(r.versions, core_contract="1.7")),
            ("expired", f"checked against prefix_cache/1.7, this core has {CONTRACTS['prefix_cache'].version}"),
        ),
    ],
)
def test_it_says_for_what_it_was_issued(certificate: Path, edit: Edit, words: tuple[str, str]) -> None:
    write_report(edit(read_report(certificate)), certificate)
    state, detail = words
    assert said().startswith(f"{state}, ")
    assert detail in said()


def test_what_is_no_report_is_none(certificate: Path) -> None:
    certificate.write_text("{}")
    assert said().startswith("not certified, ")


def test_without_one_it_says_how_to_make_it(package: Path) -> None:
    path = package / "conformance-prefix_cache-toy.json"
    assert said() == f"none, it would be written by srt conformance run prefix_cache:toy --report {path}"


def test_a_single_file_cannot_carry_one(install: Install) -> None:
    install(LightPlugin())
    assert said().startswith("none, srtkit-toy is a single file")


def test_the_command_ends_with_1_unless_it_is_valid(srt: Srt, certificate: Path, capfd: Capture) -> None:
    assert srt("certificate", "prefix_cache:toy") == 0
    certificate.unlink()
    assert srt("certificate", "prefix_cache:toy") == 1
    assert srt("certificate", "prefix_cache") == 2
    assert srt("certificate", "prefix_cache:nobody") == 3
    assert "certificate   none, " in capfd.readouterr().out


def test_show_says_it_below_the_plugins_contract(certificate: Path, capfd: Capture) -> None:
    assert main(["plugins", "show", "prefix_cache:toy"]) == 0
    lines = capfd.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("certificate   valid, level 0 "))
    assert any(line.startswith("contract      1.0; ") for line in lines[:at])
    end = lines.index("", at)
    assert lines[end + 1] == "[prefix_cache]"
    assert any(line.startswith("page_sizes    ") for line in lines[at + 1 : end])


def test_each_plugin_of_a_distribution_has_its_own() -> None:
    paths = [certificate_path("srtkit-plugin-cpu-native", kind, "cpu-native") for kind in ("attention", "ops")]
    assert [path and path.name for path in paths] == [
        "conformance-attention-cpu-native.json",
        "conformance-ops-cpu-native.json",
    ]
