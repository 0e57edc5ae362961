"""How checks end: in this process, in a child of their own, in one that serves them in turn."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from conformance.tests.conftest import toy
from srtkit_conformance.check import SuiteError
from srtkit_conformance.result import Result, level_reached
from srtkit_conformance.runner import Runner
from srtkit_conformance.suite import run_checks


@pytest.fixture
def apart(runner: Runner) -> Iterator[Runner]:
    """The runner, whose child is ended after the test."""
    yield runner
    runner.close()


def run_all(runner: Runner, *names: str) -> list[Result]:
    """The results, which must also have been announced one by one."""
    told: list[Result] = []
    results = run_checks([toy(name) for name in names], runner, {}, told.append)
    assert told == results
    return results


def running(pid: int) -> bool:
    """Whether there is a process that is not yet dead."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("name", "verdict", "message"),
    [
        ("passes", "pass", ""),
        ("shares", "refused", "every sequence keeps its own pages"),
        ("pages", "informational", "takes more, too"),
        ("fails", "fail", "always fails"),
        ("raises", "fail", "raised KeyError: 'page'"),
        ("exits", "fail", "raised SystemExit: 3"),
        ("alone", "pass", ""),
    ],
)
def test_each_outcome_has_its_verdict(runner: Runner, name: str, verdict: str, message: str) -> None:
    result = runner.run(toy(name))
    assert (result.verdict, result.message.partition("\n")[0]) == (verdict, message)


def test_a_child_says_the_same_as_this_process(apart: Runner) -> None:
    for name in ("passes", "shares", "pages", "raises"):
        here, there = apart.run(toy(name)), apart.run_apart(toy(name))
        assert there == replace(here, seconds=there.seconds)


def test_one_child_serves_all_that_are_not_isolated(apart: Runner) -> None:
    """It loads the plugin once, and what one check keeps for others is there."""
    first, alone, second = (apart.run_apart(toy(name)).figures for name in ("serves", "alone", "serves"))
    assert first["pid"] == second["pid"] != os.getpid()
    assert (first["asked"], second["asked"]) == (1, 2)
    assert alone["pid"] not in (first["pid"], os.getpid())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aborts", "the process ended by signal SIGABRT\nlast words\n"),
        ("sleeps", "did not end within 1 s"),
        ("leaves", "the process ended with exit code 6"),
    ],
)
def test_a_check_that_takes_the_child_with_it_is_one_failed_check(apart: Runner, name: str, message: str) -> None:
    """Another child goes on with the rest."""
    started = time.perf_counter()
    before, lost, after = (apart.run_apart(toy(one)) for one in ("serves", name, "serves"))
    assert lost.verdict == "fail"
    assert lost.message.startswith(message)
    assert lost.replay.endswith(f"--only prefix_cache.toy_{name}")
    assert before.figures["pid"] != after.figures["pid"]
    assert after.figures["asked"] == 1
    assert time.perf_counter() - started < 40
    assert not running(int(before.figures["pid"]))


def test_a_child_that_dies_between_two_checks_is_not_overlooked(apart: Runner) -> None:
    pid = int(apart.run_apart(toy("serves")).figures["pid"])
    os.kill(pid, signal.SIGKILL)
    while running(pid):
        time.sleep(0.01)
    assert apart.run_apart(toy("passes")).message.startswith("the process ended by signal SIGKILL")
    assert apart.run_apart(toy("passes")).verdict == "pass"


def test_the_end_of_a_run_is_the_end_of_its_child(runner: Runner) -> None:
    (result,) = run_all(runner, "serves")
    assert not running(int(result.figures["pid"]))


def test_an_interrupt_ends_the_run_and_its_child(runner: Runner) -> None:
    """As the user's Ctrl-C does, while a check runs."""
    pids: list[int] = []

    def interrupt(result: Result) -> None:
        pids.append(int(result.figures["pid"]))
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        run_checks([toy("serves"), replace(toy("sleeps"), seconds=30.0)], runner, {}, interrupt)
    assert not running(pids[0])


def test_a_result_says_all_that_a_reader_needs(runner: Runner) -> None:
    passed, failed = runner.run(toy("passes")), runner.run(toy("fails"))
    assert passed.figures == {"pages": 3, "ratio": 0.25}
    assert (failed.observed, failed.limit) == ("2", "1")
    assert failed.clause == "toy/1.0: it does as it is told"
    assert failed.replay == (
        "srt conformance run prefix_cache:chunk --device cpu --seed 7 --only prefix_cache.toy_fails"
    )


def test_an_error_of_the_plugin_shows_where_and_what_was_noted(runner: Runner) -> None:
    message = runner.run(toy("raises")).message
    assert "toy_faults.py" in message
    assert message.endswith("with the page 7")


def test_an_isolated_check_runs_in_another_process_on_the_same_subject(runner: Runner) -> None:
    figures = runner.run(toy("alone")).figures
    assert figures["pid"] != os.getpid()
    assert (figures["seed"], figures["name"]) == (7, "chunk")


def test_a_mutant_runs_here_what_is_isolated_against_crashes_only(runner: Runner) -> None:
    """The suite's own wrong plugins end no process."""
    runner.target = replace(runner.target, mutant=True)
    assert runner.run(toy("alone")).figures["pid"] == os.getpid()
    assert runner.run(replace(toy("alone"), forks=True)).figures["pid"] != os.getpid()


def test_a_crash_is_one_failed_check(runner: Runner) -> None:
    result = runner.run(toy("crashes"))
    assert result.verdict == "fail"
    assert result.message.startswith("the process ended by signal SIGSEGV")
    assert "string_at" in result.message  # where it happened
    assert "multiprocessing" not in result.message  # which says nothing of the plugin


def test_an_end_without_a_word_is_a_failed_check_that_quotes_the_output(runner: Runner) -> None:
    result = runner.run(toy("vanishes"))
    assert result.message == "the process ended with exit code 5\nabout to go"


def test_a_hang_ends_after_the_checks_time_with_all_that_it_started(runner: Runner) -> None:
    started = time.perf_counter()
    result = runner.run(toy("hangs"))
    assert time.perf_counter() - started < 30
    assert (result.verdict, result.message.partition("\n")[0]) == ("fail", "did not end within 1 s")
    pid = int((runner.folder / "1" / "pid").read_text())
    while running(pid):  # it was killed; the kernel may need a moment
        assert time.perf_counter() - started < 60
        time.sleep(0.01)


def test_under_pytest_a_crash_does_not_stop_the_others(runner: Runner) -> None:
    results = run_all(runner, "crashes", "passes", "aborts", "fails")
    assert [one.verdict for one in results] == ["fail", "pass", "fail", "fail"]


def test_a_failed_check_quotes_what_the_plugin_printed(runner: Runner, capfd: pytest.CaptureFixture[str]) -> None:
    (result,) = run_all(runner, "fails")
    assert result.message == "always fails\nit printed:\n\x1b[31mlast words"
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(("name", "why"), [("nonsense", "returned int"), ("at_fault", "contradicts itself")])
def test_a_fault_of_the_suite_is_no_verdict(runner: Runner, name: str, why: str) -> None:
    with pytest.raises(SuiteError, match=why):
        run_all(runner, name)


def test_what_pytest_is_kept_from_running_is_not_run(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own pytest settings must not make a certificate greener."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k toy_fails")
    results = run_checks([toy("passes"), toy("fails")], runner, {}, lambda result: None)
    assert [one.verdict for one in results] == ["not-run", "fail"]
    assert level_reached(results, 2) == -1


def test_a_check_gets_a_folder_of_its_own(runner: Runner) -> None:
    for _ in range(2):
        runner.run(toy("passes"))
    assert sorted(path.name for path in runner.folder.iterdir()) == ["1", "2"]


@pytest.mark.parametrize(
    ("verdicts", "level"),
    [
        ({0: "pass", 1: "refused", 2: "informational"}, 2),
        ({0: "pass", 1: "pass", 2: "fail"}, 1),
        ({0: "pass", 1: "waived", 2: "pass"}, 0),
        ({0: "not-run", 1: "pass", 2: "pass"}, -1),
    ],
)
def test_the_level_is_the_highest_without_anything_bad_below(verdicts: dict[int, str], level: int) -> None:
    results = [Result(f"toy.{n}", n, "", verdict) for n, verdict in verdicts.items()]  # type: ignore[arg-type]
    assert level_reached(results, 2) == level
