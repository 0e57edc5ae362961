"""Asks a question in a new Python, to see what work imports. Knows no kind.

Functions and arguments travel by pickle, so the function must be importable by name.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable

from srtkit_conformance.check import expect

_CHILD = """
import pickle, sys
work, arguments, roots = pickle.load(sys.stdin.buffer)
work(*arguments)
print("imported:", *sorted(set(roots) & set(sys.modules)))
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
    message = pickle.dumps((work, arguments, roots))
    done = subprocess.run([sys.executable, "-c", _CHILD], input=message, capture_output=True, timeout=50, check=False)
    error = done.stderr.decode(errors="replace").strip()
    expect(done.returncode == 0, f"it fails in a new process: {error[-2000:]}", observed=done.returncode)
    last = done.stdout.decode().splitlines()[-1]
    return set(last.removeprefix("imported:").split())
