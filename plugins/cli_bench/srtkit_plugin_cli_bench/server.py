"""Starts `srt serve` as a child, waits until it is ready, and ends it by its pid. Measures no load."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from srtkit.spec.errors import EngineError, PeerGone
from srtkit_plugin_cli_bench import process
from srtkit_plugin_cli_bench.target import Target, call

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 20.0
_LOG_LINES = 20


class Server:
    """A running `srt serve --config FILE` on a free loopback port; leaving the `with` block ends it.

    `left_behind` lists the pids of children that outlived the server's own shutdown; they are killed.
    """

    def __init__(self, config: str, overrides: list[str], timeout: float, api_key: str | None = None) -> None:
        self.target = Target("http", "127.0.0.1", port := _free_port(), "127.0.0.1", api_key=api_key)
        settings = ["server.host=127.0.0.1", f"server.port={port}", *overrides]
        options = [part for setting in settings for part in ("--set", setting)]
        self.command = [sys.executable, "-m", "srtkit", "serve", "--config", config, *options]
        self.left_behind: list[int] = []
        self._timeout = timeout

    def __enter__(self) -> Self:
        # A session of its own: Ctrl-C in the terminal reaches only us, and we end the server in order.
        self._log = tempfile.TemporaryFile(prefix="srt-bench-server-")
        self._started = time.perf_counter()
        self._child = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
        )
        try:
            self._wait_for_health()
        except BaseException:
            self._stop()
            raise
        self.ready_seconds = time.perf_counter() - self._started
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        """Of the server's parent process."""
        return self._child.pid

    def seconds_since_start(self) -> float:
        """Since the process was spawned."""
        return time.perf_counter() - self._started

    def _wait_for_health(self) -> None:
        while True:
            if self._child.poll() is not None:
                raise self._failure(f"ended with exit code {self._child.returncode} before it was ready")
            if self.seconds_since_start() > self._timeout:
                raise self._failure(f"was not ready after {self._timeout:g} s")
            try:
                status, _ = call(self.target, "GET", "/health", timeout=2.0)
            except PeerGone:
                status = 0
            if status == 200:
                return
            time.sleep(_POLL_SECONDS)

    def _failure(self, cause: str) -> EngineError:
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace")
        tail = "\n".join(text.splitlines()[-_LOG_LINES:])
        return EngineError(
            "srt serve", f"{cause}; its last lines:\n{tail}", "run `srt serve --config FILE` to see it all"
        )

    def _stop(self) -> None:
        family = process.tree(self._child.pid)
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self.left_behind = [pid for pid in family if pid != self._child.pid and Path(f"/proc/{pid}").exists()]
        for pid in self.left_behind:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._log.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
