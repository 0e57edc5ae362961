"""Asks a question in a new process, to see what work imports. Knows no kind.

Functions and arguments travel by pickle, so the function must be importable by name. The processes are forked from
a helper that has imported the function's module, so that one costs little more than the work.
"""

from __future__ import annotations

import atexit
import pickle
import select
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import IO

from srtkit_conformance.check import Failed, expect

SECONDS = 50.0

_HELPER = """
import importlib, os, pickle, struct, sys, traceback
importlib.import_module(sys.argv[1])

def answer(message):
    try:
        work, arguments, roots = pickle.loads(message)
        work(*arguments)
    except BaseException:
        return traceback.format_exc(), []
    return "", sorted(set(roots) & set(sys.modules))

replies, calls = os.dup(1), sys.stdin.buffer
os.dup2(2, 1)
while header := calls.read(8):
    message = calls.read(struct.unpack("<q", header)[0])
    pid = os.fork()
    if not pid:
        data = pickle.dumps(answer(message))
        os.write(replies, struct.pack("<q", len(data)) + data)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        data = pickle.dumps(("it crashes", []))
        os.write(replies, struct.pack("<q", len(data)) + data)
"""


def can_travel(*things: object) -> bool:
    """Whether they can be sent to a new process: no local functions, no open files."""
    try:
        pickle.dumps(things)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def imported_by(work: Callable[..., object], *arguments: object, roots: tuple[str, ...] = ("torch",)) -> set[str]:
    """Which of `roots` a new process has imported after `work(*arguments)`. Raises `Failed` if that raises."""
    error, found = _asked(work.__module__, pickle.dumps((work, arguments, roots)))
    expect(not error, f"it fails in a new process: {error.strip()[-2000:]}")
    return set(found)


def _asked(module: str, message: bytes) -> tuple[str, list[str]]:
    helper = _helper(module)
    assert helper.stdin is not None and helper.stdout is not None
    helper.stdin.write(struct.pack("<q", len(message)) + message)
    helper.stdin.flush()
    if not select.select([helper.stdout], [], [], SECONDS)[0]:
        helper.kill()
        _helper.cache_clear()
        raise Failed("it does not end in a new process", limit=f"{SECONDS:g} s")
    (size,) = struct.unpack("<q", _exactly(helper.stdout, 8))
    answer: tuple[str, list[str]] = pickle.loads(_exactly(helper.stdout, size))
    return answer


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    expect(len(data) == size, "the process that asks ended early")
    return data


@cache
def _helper(module: str) -> subprocess.Popen[bytes]:
    """Started with the first question; it ends when its input does, which is with this process at the latest."""
    made = subprocess.Popen([sys.executable, "-c", _HELPER, module], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(_end, made)
    return made


def _end(helper: subprocess.Popen[bytes]) -> None:
    helper.kill()
    helper.communicate()
