"""What the checks through a server stand on: few rows that hold all pairs, processes that end, verdicts."""

from __future__ import annotations

import gc
import http.server
import itertools
import math
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from srtkit_conformance.catalogue import SERVED, SERVER, checks_for, suite_for
from srtkit_conformance.check import Failed, Informational, Refused
from srtkit_conformance.checks import server as server_checks
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.server import combinations
from srtkit_conformance.kits.server import tour as touring
from srtkit_conformance.kits.server.client import Client
from srtkit_conformance.kits.server.combinations import begun, staged, why_not
from srtkit_conformance.kits.server.model import ServedModel, new
from srtkit_conformance.kits.server.pairwise import Row, covering
from srtkit_conformance.kits.server.process import Lost, ServerProcess, session_of
from srtkit_conformance.kits.server.soak import BEGINNING, BEGINNINGS, drawn_requests, memory
from srtkit_conformance.kits.server.tour import Tour, tour
from srtkit_conformance.kits.server.visit import Visit, _replayed, visit

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


def test_a_graph_runner_that_says_it_captures_nothing_here_is_refused_before_anything_runs(tmp_path: Path) -> None:
    target = load_target(Subject("graph_runner", "cuda-full"), suite_for("graph_runner"), tmp_path)
    outcome = tour(target).judge("tokens")
    assert isinstance(outcome, Refused)
    assert "captures nothing" in outcome.reason


def test_others_that_refuse_are_passed_over_until_nobody_of_a_kind_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_target(Subject("prefix_cache", "chunk"), suite_for("prefix_cache"), tmp_path)
    target = replace(target, servers=1)
    monkeypatch.setattr(
        touring._Guide, "visit_all", lambda self, rows: [Visit(refused_by=f"ops:{row['ops.use']}") for row in rows]
    )
    made = tour(target)
    assert "ops: nobody is left" in made.error
    assert "ops:cpu" in made.left_out
    with pytest.raises(Failed, match="left out: ops:"):
        made.judge("tokens")
    stage, error = begun(staged(target, tmp_path / "other").without(frozenset({"attention:nobody"})))
    assert error is None
    assert stage.first


def test_when_another_refuses_the_rest_is_planned_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = load_target(Subject("prefix_cache", "chunk"), suite_for("prefix_cache"), tmp_path)
    asked: list[Row] = []

    def visited(self: object, row: Row, folder: Path) -> Visit:
        asked.append(row)
        return Visit(refused_by="ops:cpu" if row["ops.use"] == "cpu" else "")

    monkeypatch.setattr(touring, "AT_ONCE", 1)
    monkeypatch.setattr(touring._Guide, "_visit", visited)
    monkeypatch.setattr(ServedModel, "expected", ())
    monkeypatch.setattr(combinations, "why_not", lambda stage, row: None)
    made = tour(target)
    assert made.left_out == {"ops:cpu"}
    assert [row["ops.use"] for row in asked].count("cpu") == 1
    rest = staged(target, tmp_path / "other").without(made.left_out)
    assert pairs(list(made.rows)) == pairs(rest.rows())


def test_a_model_with_recurrent_layers_is_served_with_a_plugin_for_them(tmp_path: Path) -> None:
    target = load_target(Subject("models", "models"), suite_for("models"), tmp_path)
    stage, error = begun(staged(target, tmp_path / "tour"))
    assert error is None
    assert stage.factors["recurrent.use"] == ("torch",)
    assert why_not(stage, {**stage.first, "prefix_cache.use": "mamba"}) is None
    model = stage.model(stage.first)
    assert model.recurs
    assert len(set(map(tuple, model.expected))) == len(model.prompts)


def test_steps_that_are_captured_on_a_platform_under_test_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_target(Subject("platform", "fakedev", "fakedev"), suite_for("platform"), tmp_path)
    stage = staged(target, tmp_path / "tour")
    monkeypatch.setattr(touring, "start", lambda settings, sets, folder, site: sets)

    assert stage.first["graph_runner.use"] == "cuda-full"
    rows = {
        str(touring.CHUNK): stage.first,
        "32": {**stage.first, "scheduler.chunk_tokens": "32"},
        "": {**stage.first, "graph_runner.use": "eager"},
    }
    for chunk, row in rows.items():
        sets: object = touring.started(target, stage, row, new(tmp_path / f"chunk {chunk}"))
        assert isinstance(sets, list)
        found = [word for word in sets if word.startswith("scheduler.chunk_tokens=")]
        assert found == ([f"scheduler.chunk_tokens={chunk}"] if chunk else [])


@pytest.mark.full
def test_a_graph_runner_is_served_with_an_attention_that_can_be_recorded(tmp_path: Path) -> None:
    target = load_target(Subject("graph_runner", "cuda-full", "fakedev"), suite_for("graph_runner"), tmp_path)
    tokens = tour(replace(target, servers=1)).judge("tokens")
    assert isinstance(tokens, dict)
    assert tokens["replayed"] > 0


def test_a_graph_runner_that_has_recorded_nothing_anywhere_is_told(tmp_path: Path) -> None:
    target = load_target(Subject("graph_runner", "eager"), suite_for("graph_runner"), tmp_path)
    target.extra["server"] = Tour(({},), (Visit({"tokens": {"replayed": 0}}),))
    assert isinstance(server_checks.tokens.body(target), Informational)
    target.extra["server"] = Tour(({},), (Visit({"tokens": {"replayed": 7}}),))
    assert server_checks.tokens.body(target) == {"servers": 1, "replayed": 7}


def test_an_eager_step_under_way_is_no_replay() -> None:
    assert _replayed({"steps_total": 5.0, "eager_steps_total": 6.0}) == 0
    assert _replayed({"steps_total": 6.0, "eager_steps_total": 5.0}) == 1


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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_what_processes_have_written_and_not_what_they_map() -> None:
    before = memory([os.getpid()])
    written = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE)  # malloc would hand out what earlier tests had written
    written.write(b"x" * (64 << 20))
    after = memory([os.getpid()])
    assert 60 < after - before < 72
    with tempfile.TemporaryFile() as file:
        file.write(written[:])
        file.flush()
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert mapped[:: 1 << 12].count(b"x") == 64 << 8
            assert memory([os.getpid()]) - after < 4
    assert memory([2**22 + 1]) == 0.0  # beyond the largest process id


def test_requests_of_a_soak_are_the_same_each_time_and_begin_alike() -> None:
    first, again = ([*itertools.islice(drawn_requests(3), 50)] for _ in range(2))
    assert first == again
    assert len({tuple(one.ids[:BEGINNING]) for one in first}) == BEGINNINGS
    assert len({tuple(one.ids) for one in first}) > 45


HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"
ANSWERS = {
    "half an answer": HALF,
    "no JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwhat",
    "no HTTP": b"what\r\n\r\n",
    "no figure": b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\nsrtkit_running x",
    "half an error": b"HTTP/1.1 500 Sorry\r\nContent-Length: 100\r\n\r\n{",
    "an event that is no JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\ndata: what",
    "a stream without events": b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\ndata: [DONE]",
}


@pytest.fixture(params=ANSWERS)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server process, and an address at which everything is answered with the same bytes."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.wfile.write(ANSWERS[request.param])

        do_GET = do_POST = answer  # noqa: N815 - names of the standard library

        def log_message(self, format: str, *args: object) -> None:
            pass

    (tmp_path / "log").touch()
    (tmp_path / "t").mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as answering:
        thread = threading.Thread(target=answering.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        (tmp_path / "log").write_text(f"http://127.0.0.1:{answering.server_port}")
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as process:
            yield ServerProcess(process, tmp_path)
            process.kill()
        answering.shutdown()
        thread.join()


def test_an_answer_that_cannot_be_read_fails_the_part_and_not_the_tour(
    broken: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [[1] * 12] * 14
    monkeypatch.setattr(ServedModel, "expected", expected)
    found = visit(broken, ServedModel(tmp_path, tmp_path, "dummy", "models", 0), math.inf).found
    assert all(isinstance(found[part], Failed) for part in ("tokens", "again", "crowd", "given_up"))


def test_connections_are_closed_when_their_answer_has_been_read(
    broken: ServerProcess, recwarn: pytest.WarningsRecorder
) -> None:
    broken.wait_until_ready()
    client = Client(broken)
    for ask in (client.figures, client.flush_cache):
        try:
            ask()
        except Failed as failed:
            assert "answer" in failed.message  # noqa: PT017 - some of the answers can be read
    gc.collect()
    assert not [one for one in recwarn if issubclass(one.category, ResourceWarning)]
