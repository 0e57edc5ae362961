"""A real server for tests: `python -m srtkit serve` as a child, on a free port, ended by its process id.

    with live_server(Path("configs/quickstart.toml"), {"model.dtype": "float32"}) as server:
        httpx.get(f"{server.base_url}/health")

What it prints goes to a file, which every failure quotes. A process left behind is a failure, too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

READY_SECONDS = 110.0
STOP_SECONDS = 20.0
_LOG_LINES = 40


@dataclass(frozen=True)
class LiveServer:
    """A running server. `process` may be waited for, or killed, by a test that is about just that."""

    base_url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Of the HTTP process."""
        return self.process.pid

    @property
    def children(self) -> list[int]:
        """Process ids of what it has started: the ranks."""
        return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]

    def output(self) -> str:
        """All that it has printed so far."""
        return self.log.read_text("utf-8", "replace")


@contextmanager
def live_server(config: Path | str, sets: Mapping[str, str] | None = None) -> Iterator[LiveServer]:
    """Serve `config` (a .toml file, or a MODEL) with `sets` on a free loopback port; yields once /health answers.

    The end of the block sends SIGTERM, unless the server has ended already. Raises AssertionError with the
    server's log when it does not get ready, does not end, or leaves a process behind.
    """
    settings = {**(sets or {}), "server.host": "127.0.0.1", "server.port": "0"}
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "srtkit", "serve", str(config), *options]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SRT_")}
    with tempfile.TemporaryDirectory(prefix="srt-test-") as folder:
        log = Path(folder, "server.log")
        with log.open("wb") as out:
            # A session of its own: nobody else's signals reach it, and its processes can be told from ours.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ, start_new_session=True
            )
        server = LiveServer("", process, log)
        try:
            yield LiveServer(_wait_until_ready(server), process, log)
        finally:
            _stop(server)


def _wait_until_ready(server: LiveServer) -> str:
    """Its URL, which it prints when it listens."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise _failure(server, f"the server ended with code {server.process.returncode} before it was ready")
        printed = re.search(r"http://127\.0\.0\.1:\d+", server.output())
        if printed and _answers(printed.group()):
            return printed.group()
        time.sleep(0.05)
    raise _failure(server, f"the server was not ready after {READY_SECONDS:.0f} s")


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _stop(server: LiveServer) -> None:
    process = server.process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        _kill_session(process)
        process.wait()
        raise _failure(server, f"the server did not end within {STOP_SECONDS:.0f} s of SIGTERM") from None
    left = _kill_session(process)
    if left:
        raise _failure(server, f"the server ended with code {process.returncode} and left processes behind: {left}")


def _kill_session(process: subprocess.Popen[bytes]) -> list[int]:
    """Kill what is left of the session that the server led; the ids of these processes."""
    left = []
    for other in psutil.process_iter():
        try:
            if os.getsid(other.pid) == process.pid and other.status() != psutil.STATUS_ZOMBIE:
                other.kill()
                left.append(other.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return left


def _failure(server: LiveServer, what: str) -> AssertionError:
    tail = "\n".join(server.output().splitlines()[-_LOG_LINES:])
    return AssertionError(f"{what}; the last lines of its log:\n{tail}")
