"""How a server ends: killed, told to stop, a child lost. Whatever the cause, no process and no folder is left."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from srtkit.cli.main import INTERRUPTED, PORT_IN_USE, main
from srtkit.parallel.launch import GRACE_SECONDS
from srtkit.spec.errors import EngineError
from tests.live import LiveServer
from tests.live_server.clients import complete, events, metrics, read_rest, send, wait_until
from tests.live_server.conftest import Start


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the servers of the test make their temporary folders."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@contextmanager
def busy(start: Start, brake: Path) -> Iterator[tuple[LiveServer, list[socket.socket]]]:
    """A server with three streams that last for minutes."""
    brake.touch()
    with start({"attention.use": "wrapped", "attention.options.brake": str(brake)}) as server:
        streams = [send(server, f"Stream {i}", 2000) for i in range(3)]
        for stream in streams:
            assert b"200 OK" in stream.recv(1 << 16)
        wait_until(lambda: metrics(server)["running"] == 3)
        yield server, streams


def test_a_killed_rank_ends_the_server_with_an_error_that_names_it(start: Start, folders: Path) -> None:
    with busy(start, folders / "brake") as (server, streams):
        (rank,) = server.children
        os.kill(rank, signal.SIGKILL)
        ends = [read_rest(stream) for stream in streams]
        assert server.process.wait(10) == EngineError.exit_code
        sentence = f"the process of rank 0 (pid {rank}) was killed by SIGKILL"
        assert f"error: engine: {sentence}" in server.output()
        assert "Traceback" not in server.output()
        for end in ends:
            *_, error, done = events(end)
            assert json.loads(error)["error"]["message"] == "the engine has stopped"
            assert done == "[DONE]"
    assert list(folders.iterdir()) == [folders / "brake"]


def test_a_killed_server_takes_its_rank_along(start: Start, folders: Path) -> None:
    with busy(start, folders / "brake") as (server, streams):
        rank = psutil.Process(server.children[0])
        server.process.kill()
        rank.wait(2)
        for stream in streams:
            stream.close()
    assert list(folders.iterdir()) == [folders / "brake"]


@pytest.mark.parametrize(
    ("number", "code", "seconds"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM, GRACE_SECONDS + 5),
        (signal.SIGHUP, 128 + signal.SIGTERM, GRACE_SECONDS + 5),
        (signal.SIGINT, INTERRUPTED, 5),
    ],
    ids=["SIGTERM", "SIGHUP", "Ctrl-C"],
)
def test_a_signal_ends_it_in_order_and_open_requests_with_it(
    start: Start, folders: Path, number: int, code: int, seconds: float
) -> None:
    with busy(start, folders / "brake") as (server, streams):
        os.killpg(server.pid, number)  # as a terminal does
        if number != signal.SIGINT:
            os.kill(server.children[0], number)  # service managers send it to every process
        ends = [read_rest(stream) for stream in streams]
        assert server.process.wait(seconds) == code
        assert "Traceback" not in server.output()
        assert server.output().count(f" INFO stopping on {signal.Signals(number).name}: 3 requests are ended\n") == 1
        assert server.output().count("stopping on") == 1
        assert server.output().endswith("\nstopped by Ctrl-C\n") == (number == signal.SIGINT)
        for end in ends:
            *_, last, done = events(end)
            assert json.loads(last)["choices"][0]["finish_reason"] == "abort"
            assert done == "[DONE]"
    assert list(folders.iterdir()) == [folders / "brake"]


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM, r"\S+ \S+ INFO stopping on SIGTERM during the start\n"),
        (signal.SIGHUP, 128 + signal.SIGTERM, r"\S+ \S+ INFO stopping on SIGHUP during the start\n"),
        (signal.SIGINT, INTERRUPTED, "stopped by Ctrl-C\n"),
    ],
    ids=["SIGTERM", "SIGHUP", "Ctrl-C"],
)
def test_a_signal_during_the_start_ends_it_in_order(
    config: Path, folders: Path, number: int, code: int, said: str
) -> None:
    command = [sys.executable, "-m", "srtkit", "serve", "--config", str(config), "--set", "server.port=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    wait_until(lambda: bool(psutil.Process(process.pid).children()), 60)
    (rank,) = psutil.Process(process.pid).children()
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == code
    assert re.fullmatch(said, output.decode())
    rank.wait(5)
    assert list(folders.iterdir()) == []


def test_a_closed_terminal_ends_it_in_order(config: Path, folders: Path) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "srtkit", "serve", "--config", str(config), "--set", "server.port=0"]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # the terminal of its session
    )
    os.close(theirs)
    output = b""
    while b'"temperature": 0}\'\r\n' not in output:  # the end of the banner
        output += os.read(ours, 1 << 16)
    (rank,) = psutil.Process(process.pid).children()
    os.close(ours)
    assert process.wait(20) == 128 + signal.SIGTERM
    rank.wait(5)
    assert list(folders.iterdir()) == []


def test_under_nohup_it_outlives_its_terminal(start: Start) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which children inherit
    with start() as server:
        os.kill(server.pid, signal.SIGHUP)
        assert complete(server, "Still here", 20)
        assert "stopping on" not in server.output()


def test_a_taken_port_is_noticed_before_weights_are_read(
    server: LiveServer, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port, children = server.base_url.rpartition(":")[2], psutil.Process().children()
    code = main(["serve", "--config", str(config), "--set", f"server.port={port}"])
    assert code == PORT_IN_USE
    assert f"error: server.port: port {port} on 127.0.0.1 is in use" in capsys.readouterr().err
    assert psutil.Process().children() == children  # no rank was started
