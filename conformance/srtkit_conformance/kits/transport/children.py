"""Real processes with a transport of the run, which may be killed. They never outlive their check."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

from srtkit.spec.transport import Transport
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.transport.sides import SOON, build
from srtkit_conformance.target import Target

LIFE_SECONDS = 50
Say = Callable[[str], None]
Work = Callable[[Transport, Say], None]
"""What a child does; it says a word when it is ready for what the check does next."""

# Forked, so that a wrong plugin that exists only in this process reaches it. Fork before opening anything.
_PROCESSES = multiprocessing.get_context("fork")


@dataclass
class Child:
    """A process that runs `Work`."""

    process: ForkProcess
    pipe: Connection

    def said(self) -> str:
        """The next word it says. Raises `Failed` if it ends or stays silent."""
        try:
            if self.pipe.poll(SOON):
                word: str = self.pipe.recv()
                return word
        except EOFError:
            self.process.join(SOON)
            raise Failed("a process of the run ended early", observed=f"exit code {self.process.exitcode}") from None
        raise Failed("a process of the run does not come up", observed=f"silent for {SOON:g} s")

    def kill(self) -> None:
        """End it as the kernel would: no cleaning up."""
        os.kill(self.process.pid or 0, signal.SIGKILL)
        self.process.join(SOON)

    def ended(self) -> int | None:
        """Wait for its end; the exit code, None if it did not end."""
        self.process.join(SOON)
        return self.process.exitcode


@contextmanager
def child(target: Target, folder: Path, work: Work) -> Iterator[Child]:
    """Start a process with a transport of the run in `folder`."""
    ours, theirs = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_main, args=(target, folder, work, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Child(process, ours)
    finally:
        process.kill()
        process.join(SOON)
        ours.close()


def _main(target: Target, folder: Path, work: Work, pipe: Connection) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIFE_SECONDS)  # should its parent be killed first
    work(build(target, folder), pipe.send)
    os._exit(0)  # it ends where `work` does, without the interpreter closing what that left open
