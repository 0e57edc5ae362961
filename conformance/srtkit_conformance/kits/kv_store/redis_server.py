"""A real Redis on a free port of this machine, for one test or check; nothing of it stays.

It is the system's `redis-server`. Whoever has none is told so: nothing here plays Redis.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from srtkit_conformance.check import Failed

PROGRAM = "redis-server"
MISSING = f"{PROGRAM} is not installed: apt-get install {PROGRAM}"
SECONDS = 20.0


@dataclass
class RedisServer:
    """A process that answers at `port`. `arguments` are those it is started with again."""

    port: int
    arguments: Sequence[str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self.process = subprocess.Popen(self.arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.01)
        raise Failed(f"{PROGRAM} does not come up at port {self.port}")

    def stop(self) -> None:
        """End it, and wait for its end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(SECONDS)


def installed() -> bool:
    """Whether there is one."""
    return shutil.which(PROGRAM) is not None


@contextmanager
def redis_server(folder: Path, *more: str, tls: bool = False) -> Iterator[RedisServer]:
    """Run one that keeps nothing on disk; `more` are arguments such as "--requirepass". `tls`: its port speaks TLS.

    Raises `Failed` if none is installed.
    """
    if not installed():
        raise Failed(MISSING)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ports = ["--port", "0", "--tls-port", str(port)] if tls else ["--port", str(port)]
    quiet = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    server = RedisServer(port, [PROGRAM, *ports, *quiet, *more])
    try:
        server.start()
        yield server
    finally:
        server.stop()
