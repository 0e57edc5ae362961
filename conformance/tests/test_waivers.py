"""Known failures: they need a reason, they end, and they go when they are not needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from conformance.tests.conftest import toy
from srtkit.spec.errors import ConfigError
from srtkit_conformance.report import Clock, Report, make_report
from srtkit_conformance.result import Result
from srtkit_conformance.runner import Runner
from srtkit_conformance.suite import run_checks
from srtkit_conformance.waivers import Waiver, read_waivers

FAILED = Result("toy.fails", 1, "toy/1.0", "fail", message="always fails")
WAIVER = Waiver(id="toy.fails", reason="fixed in the next one", expires=date(2030, 6, 30))


def certify(runner: Runner, *waivers: Waiver) -> Report:
    """A run of one check that passes and one that fails."""
    by_id = {one.id: one for one in waivers}
    results = run_checks([toy("passes"), toy("fails")], runner, by_id, lambda result: None)
    return make_report(runner.target, results, 2, by_id, Clock())


def waiver(name: str, expires: date = date.max) -> Waiver:
    return Waiver(id=f"prefix_cache.toy_{name}", reason="a known failure", expires=expires)


def test_a_failure_is_waived_until_the_last_day() -> None:
    waived = WAIVER.apply(FAILED, date(2030, 6, 30))
    assert (waived.verdict, waived.waiver) == ("waived", "fixed in the next one (until 2030-06-30)")
    assert waived.message == "always fails"


def test_an_expired_waiver_waives_nothing_and_says_so() -> None:
    kept = WAIVER.apply(FAILED, date(2030, 7, 1))
    assert kept.verdict == "fail"
    assert kept.message.endswith("its waiver expired on 2030-06-30")


def test_only_failures_are_waived() -> None:
    for verdict in ("pass", "refused", "informational", "not-run"):
        good = replace(FAILED, verdict=verdict)
        assert WAIVER.apply(good, date(2030, 1, 1)) == good


def test_a_waiver_keeps_the_exit_code_but_not_the_level(runner: Runner) -> None:
    report = certify(runner, waiver("fails"))
    assert (report.exit_code, report.level_reached) == (0, 1)
    assert [one.state for one in report.waivers] == ["used"]


def test_without_it_the_run_fails(runner: Runner) -> None:
    report = certify(runner)
    assert (report.exit_code, report.level_reached) == (1, 1)


def test_an_expired_one_is_reported_as_such(runner: Runner) -> None:
    report = certify(runner, waiver("fails", date(2020, 1, 1)))
    assert report.exit_code == 1
    assert [one.state for one in report.waivers] == ["expired"]


def test_one_that_is_not_needed_fails_the_run(runner: Runner) -> None:
    report = certify(runner, waiver("fails"), waiver("passes"), waiver("pages"))
    assert report.exit_code == 1
    assert [one.state for one in report.waivers] == ["used", "not-needed", "not-run"]


def test_a_file_of_waivers(tmp_path: Path) -> None:
    file = tmp_path / "waivers.toml"
    file.write_text('[[waiver]]\nid = "toy.fails"\nreason = "fixed in the next one"\nexpires = 2030-06-30\n')
    assert read_waivers(file, {"toy.fails"}) == {"toy.fails": WAIVER}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[waiver]]\nid = 'toy.fails'\nreason = 'a known failure'", "expires"),
        ("[[waiver]]\nid = 'toy.fails'\nexpires = 2030-06-30", "reason"),
        ("[[waiver]]\nid = 'toy.fails'\nreason = '?'\nexpires = 2030-06-30", "at least 8"),
        ("[[waiver]]\nid = 'toy.fials'\nreason = 'a known failure'\nexpires = 2030-06-30", 'waives "toy.fials"'),
        (2 * "[[waiver]]\nid = 'toy.fails'\nreason = 'a known failure'\nexpires = 2030-06-30\n", "twice"),
        ("[[waivers]]\nid = 'toy.fails'", "waivers"),
        ("[[waiver", "no file of waivers"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "waivers.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_waivers(file, {"toy.fails"})
