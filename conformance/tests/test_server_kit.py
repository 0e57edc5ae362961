"""What the checks through a server stand on: few rows that hold all pairs, processes that end, verdicts."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from srtkit_conformance.catalogue import SERVED, SERVER, checks_for, suite_for
from srtkit_conformance.check import Failed, Refused
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.server.combinations import staged, why_not
from srtkit_conformance.kits.server.pairwise import Row, covering
from srtkit_conformance.kits.server.process import Lost, ServerProcess, session_of
from srtkit_conformance.kits.server.tour import Tour, tour
from srtkit_conformance.kits.server.visit import Visit

FACTORS = {"a": ("1", "2", "3"), "b": ("1", "2"), "c": ("1", "2", "3"), "d": ("1", "2")}


def pairs(rows: list[Row]) -> set[tuple[tuple[str, str], ...]]:
    return {pair for row in rows for pair in itertools.combinations(row.items(), 2)}


def whole() -> list[Row]:
    return [dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*FACTORS.values())]


def test_every_pair_is_in_a_row_and_rows_are_few() -> None:
    rows = covering(FACTORS, lambda row: True)
    assert pairs(rows) == pairs(whole())
    assert len(rows) <= 11  # 9 are the least: a and c have three values each
    assert rows[0] == dict.fromkeys(FACTORS, "1")


def test_a_value_or_a_pair_that_is_not_legal_is_left_out_and_costs_no_other_pair() -> None:
    def legal(row: Row) -> bool:
        return row["a"] != "3" and (row["b"], row["c"]) != ("2", "3")

    rows = covering(FACTORS, legal)
    assert all(map(legal, rows))
    assert pairs(rows) == pairs([row for row in whole() if legal(row)])


def test_what_was_done_is_not_asked_again() -> None:
    rows = covering(FACTORS, lambda row: True)
    assert covering(FACTORS, lambda row: True, done=rows) == []
    assert covering(FACTORS, lambda row: True, most=1) == rows[:1]


def test_kinds_that_are_served_have_the_checks_under_their_name() -> None:
    names = {one.id.removeprefix("server.") for one in suite_for(SERVER).checks()}
    for kind in SERVED:
        assert names == {one.id.rpartition(".")[2] for one in checks_for(kind) if one.id.startswith(f"{kind}.server.")}
    assert not any(one.id.startswith("recurrent.server.") for one in checks_for("recurrent"))


def test_combinations_are_those_that_core_resolves(tmp_path: Path) -> None:
    target = load_target(Subject("prefix_cache", "chunk"), suite_for("prefix_cache"), tmp_path)
    stage = staged(target, tmp_path / "tour")
    assert stage.factors["prefix_cache.use"] == ("chunk",)
    assert {"safetensors", "gguf", "dummy"} <= set(stage.models)
    assert why_not(stage, stage.first) is None
    assert "page" in str(why_not(stage, {**stage.first, "memory.page_size": "999"}))
    (row,) = stage.rows(most=1)
    assert row == stage.first


def test_a_transport_that_says_it_connects_no_processes_is_refused_before_anything_runs(tmp_path: Path) -> None:
    target = load_target(Subject("transport", "inproc"), suite_for("transport"), tmp_path)
    made = tour(target)
    assert made.visits == ()
    outcome = made.judge("tokens")
    assert isinstance(outcome, Refused)
    assert "cannot connect processes" in outcome.reason


def test_a_failure_names_the_combination() -> None:
    bad, good = Visit(), Visit()
    bad.part("tokens", lambda: _fail("other tokens"))
    good.part("tokens", lambda: {"clients": 3})
    rows: tuple[Row, ...] = ({"attention.use": "torch", "memory.page_size": ""}, {"attention.use": "mine"})
    assert Tour(rows[:1], (good,)).judge("tokens") == {"servers": 1, "clients": 3}
    with pytest.raises(Failed, match=r"other tokens\nwith attention.use=mine; 1 of 2 combinations fail"):
        Tour(rows, (good, bad)).judge("tokens")


def test_a_lost_server_is_asked_nothing_more() -> None:
    found = Visit()
    found.part("ready", lambda: _fail("gone", Lost))
    found.part("tokens", lambda: pytest.fail("asked"))
    assert isinstance(found.found["tokens"], Lost)


def _fail(sentence: str, kind: type[Failed] = Failed) -> None:
    raise kind(sentence)


def test_what_a_server_has_started_ends_with_it(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    process = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
    server = ServerProcess(process, tmp_path)
    while len(session_of(process.pid)) < 2:
        os.sched_yield()
    server.kill()
    assert process.returncode == -9
    assert session_of(process.pid) == []
    server.kill()


def test_a_server_that_ends_before_it_is_ready_is_lost_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("error: ops:gpu: is not here\n  remedy: buy one\n")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(25)"]) as process:
        server = ServerProcess(process, tmp_path)
        with pytest.raises(Lost, match="ops:gpu: is not here"):
            server.wait_until_ready()
        assert server.refused_by() == "ops:gpu"


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to end it")
def test_a_server_does_not_outlive_the_suite_even_one_that_is_killed(tmp_path: Path) -> None:
    """The settings name a source that does not exist: python takes far longer to say so than we to look."""
    (tmp_path / "served.toml").write_text('[model]\nsource = "nowhere"\n')
    suite = (
        "import os, signal, sys; from pathlib import Path; from srtkit_conformance.kits.server.process import start\n"
        "server = start(Path(sys.argv[1]) / 'served.toml', [], Path(sys.argv[1]), None)\n"
        "os.kill(server.process.pid, signal.SIGSTOP)\n"  # so that it cannot end by itself
        "print(server.process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", suite, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert killed.returncode == -9
    deadline = time.monotonic() + 10
    while left := session_of(int(killed.stdout)):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
