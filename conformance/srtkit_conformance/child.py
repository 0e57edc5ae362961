"""One check in a process of its own: a crash is a failed check, a hang ends after the check's time.

The children are forked from a server process that has imported the suite's modules and run nothing, so that
one costs little more than the check itself. Knows processes, not checks.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from srtkit_conformance.body import result_of, run_here
from srtkit_conformance.catalogue import Suite
from srtkit_conformance.check import Check, SuiteError
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.result import Result

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

START_SECONDS = 120.0
"""Until a child has loaded the plugin: importing torch may be slow on a busy machine."""
LAST_LINES = 12

_PROCESSES = multiprocessing.get_context("forkserver")


def preload(suites: Iterable[Suite]) -> None:
    """Name what the server process imports before the first child is forked."""
    modules = [name for suite in suites for name in (*suite.check_modules, *suite.mutant_modules)]
    _PROCESSES.set_forkserver_preload([__name__, *modules])


def run_isolated(subject: Subject, suite: Suite, check: Check, folder: Path) -> Result:
    """Run `check` in a child. Raises `SuiteError` if the child cannot be started or reports one."""
    ours, theirs = _PROCESSES.Pipe(duplex=False)
    child = _PROCESSES.Process(target=_main, args=(subject, suite, check.id, folder, theirs), name=check.id)
    child.start()
    theirs.close()
    try:
        return _wait(child, ours, subject, check, folder / "output")
    finally:
        _kill(child)
        ours.close()


def _wait(child: BaseProcess, pipe: Connection, subject: Subject, check: Check, output: Path) -> Result:
    started = time.perf_counter()
    try:
        if not pipe.poll(START_SECONDS):
            return _failed(subject, check, f"the plugin did not load within {START_SECONDS:g} s", output, started)
        _receive(pipe)
        started = time.perf_counter()
        if not pipe.poll(check.seconds):
            return _failed(subject, check, f"did not end within {check.seconds:g} s", output, started)
        return msgspec.json.decode(_receive(pipe), type=Result)
    except EOFError:
        child.join(10)
        return _failed(subject, check, f"the process ended {_how(child.exitcode)}", output, started)


def _receive(pipe: Connection) -> bytes:
    """The next message: bytes, or the sentence of an error of the suite."""
    message = pipe.recv_bytes()
    if message.startswith(b"!"):
        raise SuiteError(message[1:].decode())
    return message


def _failed(subject: Subject, check: Check, what: str, output: Path, started: float) -> Result:
    lines = output.read_text("utf-8", errors="replace").splitlines() if output.exists() else []
    result = result_of(check, "fail", "\n".join([what, *lines[-LAST_LINES:]]))
    return replace(result, seconds=time.perf_counter() - started, replay=subject.replay(check.id))


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with exit code {code}"


def _kill(child: BaseProcess) -> None:
    """End the child and what it has started; it leads a process group of its own."""
    assert child.pid is not None
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:  # nothing of its group is left, or it has not made one yet
        child.kill()
    child.join()
    child.close()


def _main(subject: Subject, suite: Suite, check_id: str, folder: Path, pipe: Connection) -> None:
    """The child: says that it is ready, then the result. Output goes to a file that a failure quotes."""
    os.setsid()
    descriptor = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable(descriptor)
    try:
        check = next(one for one in suite.checks() if one.id == check_id)
        target = load_target(subject, suite, folder)
        pipe.send_bytes(b"ready")
        result = run_here(replace(target, folder=folder), check, subject.replay(check_id))
        pipe.send_bytes(msgspec.json.encode(result))
    except SuiteError as error:
        pipe.send_bytes(f"!{error}".encode())
