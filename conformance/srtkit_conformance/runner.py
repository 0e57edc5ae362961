"""The checks of one subject, here or in child processes, as each asks for. Knows no kind and no pytest.

The suite's own mutants neither crash nor hang where a check guards against that: they spare themselves the child.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from srtkit_conformance.body import run_here
from srtkit_conformance.catalogue import Suite
from srtkit_conformance.check import Check
from srtkit_conformance.child import run_isolated
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

    def run(self, check: Check) -> Result:
        """The result of one check. Raises `SuiteError` when the suite is at fault."""
        self._started += 1
        folder = self.folder / str(self._started)  # short: the paths of local sockets are limited
        folder.mkdir(mode=0o700)
        if check.isolated and (check.forks or not self.target.mutant):
            return run_isolated(self.subject, self.suite, check, folder)
        return run_here(replace(self.target, folder=folder), check, self.subject.replay(check.id))
