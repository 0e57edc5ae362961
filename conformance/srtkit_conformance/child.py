"""Checks in another process: a crash is a failed check, a hang ends after the check's time.

The children are forked from a server process that has imported the suite's modules and run nothing, so that
one costs little more than the check itself. Knows processes, not checks.
"""

from __future__ import annotations

import faulthandler
import io
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice, takewhile
from multiprocessing.connection import Connection, wait
from pathlib import Path

import msgspec

from srtkit_conformance.body import result_of, run_here
from srtkit_conformance.catalogue import Suite
from srtkit_conformance.check import Check, SuiteError
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.result import Result

START_SECONDS = 120.0
"""Until a child has loaded the plugin: importing torch may be slow on a busy machine."""
LAST_LINES = 20
"""Of what was printed, and of the calls that led to a crash."""
OUTPUT = "output"
"""The file in a check's folder that has what was printed meanwhile."""

_PROCESSES = multiprocessing.get_context("forkserver")


def preload(suites: Iterable[Suite]) -> None:
    """Name what the server process imports before the first child is forked."""
    modules = [name for suite in suites for name in (*suite.check_modules, *suite.mutant_modules)]
    _PROCESSES.set_forkserver_preload([__name__, *modules])


class Child:
    """A process that loads `subject` once and runs checks on it, one after the other. `close` ends it.

    `lost`: it has crashed or hangs, so that it can run nothing more. `folder` is that of its first check.
    """

    def __init__(self, subject: Subject, suite: Suite, folder: Path) -> None:
        self.lost = False
        self._subject = subject
        self._loaded = False
        self._pipe, theirs = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=_main, args=(subject, suite, folder, theirs), name=subject.name)
        self._process.start()
        theirs.close()

    def run(self, check: Check, folder: Path) -> Result:
        """The result of `check`, also if the child does not live to send it. Raises `SuiteError` if it reports one."""
        started = time.perf_counter()
        try:
            if not self._loaded:
                self._receive(START_SECONDS, "the plugin did not load")
                self._loaded = True
            started = time.perf_counter()
            self._pipe.send_bytes(msgspec.msgpack.encode((check.id, str(folder))))
            result = msgspec.msgpack.decode(self._receive(check.seconds, "did not end"), type=Result)
        except TimeoutError as error:
            return self._lost(check, str(error), folder, started)
        except (EOFError, ConnectionError):
            self._process.join(10)
            return self._lost(check, f"the process ended {_how(self._process.exitcode)}", folder, started)
        printed = _last_lines(folder) if result.verdict == "fail" else []
        return replace(result, message="\n".join([result.message, "it printed:", *printed])) if printed else result

    def close(self) -> None:
        """End the child and what it has started; it leads a process group of its own."""
        assert self._process.pid is not None
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:  # nothing of its group is left, or it has not made one yet
            self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()

    def _receive(self, seconds: float, late: str) -> bytes:
        """The next message: bytes, or the sentence of an error of the suite."""
        if not wait([self._pipe, self._process.sentinel], seconds):
            raise TimeoutError(f"{late} within {seconds:g} s")
        if not self._pipe.poll():  # it has ended, but what it has started holds the other end of the pipe
            raise EOFError
        message = self._pipe.recv_bytes()
        if message.startswith(b"!"):
            raise SuiteError(message[1:].decode())
        return message

    def _lost(self, check: Check, what: str, folder: Path, started: float) -> Result:
        self.lost = True
        result = result_of(check, "fail", "\n".join([what, *_last_lines(folder)]))
        return replace(result, seconds=time.perf_counter() - started, replay=self._subject.replay(check.id))


def run_isolated(subject: Subject, suite: Suite, check: Check, folder: Path) -> Result:
    """Run `check` in a child of its own. Raises `SuiteError` if that reports one."""
    child = Child(subject, suite, folder)
    try:
        return child.run(check, folder)
    finally:
        child.close()


def _last_lines(folder: Path) -> list[str]:
    """What was printed last; after a crash also in which call, down to the check's body."""
    output = folder / OUTPUT
    text = output.read_text("utf-8", errors="replace") if output.exists() else ""
    printed, fatal, frames = text.partition("Fatal Python error")
    crash = takewhile(lambda line: f"in {run_here.__name__}" not in line, (fatal + frames).splitlines())
    return [*printed.splitlines()[-LAST_LINES:], *islice(crash, LAST_LINES)]


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with exit code {code}"


def _main(subject: Subject, suite: Suite, folder: Path, pipe: Connection) -> None:
    """The child: says that it is ready, then a result for each check that it is asked for, until it is killed."""
    os.setsid()
    _print_to(folder)
    faulthandler.enable(2, all_threads=False)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # a crash loses no line that was printed before
    try:
        checks = {one.id: one for one in suite.checks()}
        target = load_target(subject, suite, folder)
        pipe.send_bytes(b"ready")
        while True:
            id_, path = msgspec.msgpack.decode(pipe.recv_bytes(), type=tuple[str, str])
            _print_to(Path(path))
            result = run_here(replace(target, folder=Path(path)), checks[id_], subject.replay(id_))
            pipe.send_bytes(msgspec.msgpack.encode(result))
    except SuiteError as error:
        pipe.send_bytes(f"!{error}".encode())
    except EOFError:  # the parent has gone
        os._exit(0)


def _print_to(folder: Path) -> None:
    """Send standard output and errors to a file that a failure quotes, until the next call."""
    descriptor = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
