"""Starting and ending a server: real children, which stand for `srt serve` through `command`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from srtkit.spec.errors import EngineError
from srtkit_plugin_cli_bench.server import Server
from srtkit_plugin_cli_bench.target import call

# Answers every GET with 200; before that it starts a child that survives it.
SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(child.pid).encode())
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def server(code: str, timeout: float = 20.0) -> Server:
    made = Server("quickstart.toml", ["scheduler.depth=0"], timeout)
    made.command = [sys.executable, "-c", code, str(made.target.port)]
    return made


def gone(pid: int) -> bool:
    """Whether it ended; whoever adopted it may not have reaped it yet."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


def test_the_command_is_srt_serve_on_a_free_port() -> None:
    made = Server("quickstart.toml", ["scheduler.depth=0"], 1.0)
    assert made.command[:6] == [sys.executable, "-m", "srtkit", "serve", "--config", "quickstart.toml"]
    settings = made.command[6:]
    assert settings[::2] == ["--set"] * 3
    assert settings[1::2] == ["server.host=127.0.0.1", f"server.port={made.target.port}", "scheduler.depth=0"]


def test_ready_then_ended_with_all_that_it_started() -> None:
    with server(SERVER) as running:
        assert 0 < running.ready_seconds <= running.seconds_since_start()
        _, child = call(running.target, "GET", "/health")
        pid = running.pid
        os.kill(child, 0)
    assert gone(pid)
    assert running.left_behind == [child]
    assert gone(child)


def test_a_server_that_ends_early_shows_its_last_lines() -> None:
    code = "import sys; print('loading'); sys.exit('no such model')"
    with pytest.raises(EngineError, match="exit code 1 before it was ready") as caught, server(code):
        pytest.fail("it was never ready")
    assert "loading" in caught.value.cause
    assert "no such model" in caught.value.cause


def test_a_server_that_never_gets_ready_is_ended() -> None:
    made = server("import time; time.sleep(60)", timeout=0.2)
    with pytest.raises(EngineError, match="not ready after"), made:
        pytest.fail("it was never ready")
    assert gone(made.pid)


def test_an_error_while_measuring_ends_the_server() -> None:
    with pytest.raises(KeyboardInterrupt), server(SERVER) as running:
        raise KeyboardInterrupt
    assert gone(running.pid)


def test_a_server_that_ended_by_itself_is_no_problem() -> None:
    with server(SERVER) as running:
        os.kill(running.pid, signal.SIGKILL)
        assert gone(running.pid)
    assert len(running.left_behind) in (0, 1)
