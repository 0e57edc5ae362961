"""`srt serve` as a child process on a free loopback port, ended by its process id. Knows no plugin.

Whatever it prints goes to a file that failures quote; it has a session and a folder for temporary files of its
own, so that what it leaves behind can be told. On Linux it does not outlive the suite, even one that is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit_conformance.check import Failed

READY_SECONDS = 60.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.02
LAST_LINES = 15
OF_TORCH = "torchinductor_"
"""The compiler's cache, which torch makes for all processes of a user, and keeps."""
ORDERLY = (0, 128 + signal.SIGTERM)
REFUSED = (DeviceAbsent.exit_code, Unsupported.exit_code)
_ERROR = re.compile(r"^error: ([a-z_]+:[^ :]+):", re.MULTILINE)
_URL = re.compile(r"http://127\.0\.0\.1:(\d+)")
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
"""prctl(2): which signal comes when the thread that forked ends, however it does."""


class Lost(Failed):
    """The server has ended, or does not answer any more: nothing further can be asked of it."""


@dataclass
class ServerProcess:
    """A started server; `port` is 0 until it is ready."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int = 0

    @property
    def output(self) -> str:
        """All that it has printed."""
        return (self.folder / "log").read_text("utf-8", errors="replace")

    def last_lines(self) -> str:
        """The end of it, for a message."""
        return "\n".join(self.output.splitlines()[-LAST_LINES:])

    def wait_until_ready(self) -> None:
        """Until it listens at the address that it prints. Raises `Lost` if it ends before, or takes too long."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            ended = self.process.poll()
            if (found := _URL.search(self.output)) and _listens(int(found[1])):
                self.port = int(found[1])
                return
            if ended is not None:
                raise Lost(f"the server ended before it was ready\n{self.last_lines()}", observed=f"exit code {ended}")
            time.sleep(POLL_SECONDS)
        raise Lost(f"the server is not ready\n{self.last_lines()}", limit=f"{READY_SECONDS:g} s")

    def refused_by(self) -> str:
        """The plugin, "kind:name", that had it end because its device is not here, or it cannot do this; else ""."""
        found = _ERROR.search(self.output)
        return found[1] if found and self.process.poll() in REFUSED else ""

    def stop(self) -> None:
        """SIGTERM, as a service manager sends it. Raises `Failed` if it does not end well, or leaves something."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed("the server does not end when it is told to", limit=f"{STOP_SECONDS:g} s") from None
        if code not in ORDERLY:
            raise Failed(f"the server does not end well\n{self.last_lines()}", observed=f"exit code {code}")
        if left := session_of(self.process.pid):
            raise Failed("the server leaves processes behind", observed=f"{len(left)}")
        if files := sorted(path.name for path in self.temporary.iterdir() if not path.name.startswith(OF_TORCH)):
            raise Failed("the server leaves temporary files behind", observed=files)

    @property
    def temporary(self) -> Path:
        """Its folder for temporary files."""
        return self.folder / "t"

    def kill(self) -> None:
        """End it, and whatever it has started, at once. Idempotent."""
        while left := session_of(self.process.pid):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
        self.process.kill()  # where there is no /proc
        self.process.wait()


def start(settings: Path, sets: Sequence[str], folder: Path, site: Path | None) -> ServerProcess:
    """Start a server of a settings file; `site` is searched for plugins, too.

    One thread of OpenMP: with a model this small others would only wait for each other.
    """
    words = [word for text in (*sets, "server.host=127.0.0.1", "server.port=0") for word in ("--set", text)]
    command = [sys.executable, "-m", "srtkit", "serve", "--config", str(settings), *words]
    (folder / "t").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SRT_")}  # noqa: TID251  (handed on)
    environment |= {"TMPDIR": str(folder / "t"), "OMP_NUM_THREADS": "1"}
    if site is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), environment.get("PYTHONPATH"))))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            preexec_fn=_end_with_starter if sys.platform == "linux" else None,
        )
    return ServerProcess(process, folder)


def _end_with_starter() -> None:
    """Runs in the server's process before `exec`. The thread that starts a server also visits it to its end."""
    assert _LIBC is not None
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def session_of(leader: int) -> list[int]:
    """Processes of the session that `leader` made, zombies left out. Empty where there is no /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = entry.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        if int(session) == leader and state != "Z":
            found.append(int(entry.parent.name))
    return found
