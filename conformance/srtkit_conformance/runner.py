"""The checks of one subject, in this process or in children. Knows no kind and no pytest.

Whoever judges a stranger's plugin runs nothing of it here. The suite's own proof and a plugin's own tests do, which
is quicker; the suite's mutants neither crash nor hang where a check guards against that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from srtkit_conformance.body import run_here
from srtkit_conformance.catalogue import Suite
from srtkit_conformance.check import Check
from srtkit_conformance.child import Child, run_isolated
from srtkit_conformance.find import Subject
from srtkit_conformance.result import Result
from srtkit_conformance.target import Target


@dataclass
class Runner:
    """`target` is what `subject` loads as in this process. Each check gets a fresh folder below `folder`."""

    subject: Subject
    suite: Suite
    target: Target
    folder: Path
    _started: int = 0
    _child: Child | None = None

    def run(self, check: Check) -> Result:
        """The result of one check, here unless it asks for a child. Raises `SuiteError` when the suite is at fault."""
        folder = self._next_folder()
        if check.isolated and (check.forks or not self.target.mutant):
            return run_isolated(self.subject, self.suite, check, folder)
        return run_here(replace(self.target, folder=folder), check, self.subject.replay(check.id))

    def run_apart(self, check: Check) -> Result:
        """The result of one check in any case in a child: its own, or one that serves all others until it is lost.

        Raises `SuiteError` when the suite is at fault. `close` ends the child.
        """
        folder = self._next_folder()
        if check.isolated:
            return run_isolated(self.subject, self.suite, check, folder)
        if self._child is None:
            self._child = Child(self.subject, self.suite, folder)
        result = self._child.run(check, folder)
        if self._child.lost:
            self.close()
        return result

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _next_folder(self) -> Path:
        self._started += 1
        folder = self.folder / str(self._started)  # short: the paths of local sockets are limited
        folder.mkdir(mode=0o700)
        return folder
