"""A run of checks under pytest: collection is pytest's, the verdicts are ours, and the checks run in children.

pytest loads no plugin of its environment and reads no settings. Knows neither reports nor how a target is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest

from srtkit_conformance import items
from srtkit_conformance.body import result_of
from srtkit_conformance.check import Check, SuiteError
from srtkit_conformance.result import Result
from srtkit_conformance.runner import Runner
from srtkit_conformance.waivers import Waiver


@dataclass
class _Collector:
    """The pytest plugin: gives every item its check, and keeps the results."""

    checks: Sequence[Check]
    runner: Runner
    waivers: Mapping[str, Waiver]
    on_result: Callable[[Result], None]
    results: dict[str, Result] = field(default_factory=dict)
    error: SuiteError | None = None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One item a check."""
        metafunc.parametrize("check", self.checks, ids=[one.id for one in self.checks])

    @pytest.fixture(name="run")
    def run_fixture(self) -> Callable[[Check], Result]:
        """What an item calls."""
        return self.run

    def run(self, check: Check) -> Result:
        """Run a check, apply its waiver, and keep what came of it."""
        try:
            result = self.runner.run_apart(check)
        except SuiteError as error:
            self.error = error
            raise
        waiver = self.waivers.get(check.id)
        result = self.results[check.id] = result if waiver is None else waiver.apply(result)
        self.on_result(result)
        return result


def run_checks(
    checks: Sequence[Check],
    runner: Runner,
    waivers: Mapping[str, Waiver],
    on_result: Callable[[Result], None],
) -> list[Result]:
    """The results of `checks` in order; one that pytest did not come to is `not-run`.

    Raises `SuiteError` when the suite is at fault, KeyboardInterrupt when the user stops it.
    """
    settings = runner.folder / "pytest.ini"
    settings.write_text("[pytest]\n")
    collector = _Collector(checks, runner, waivers, on_result)
    options = ["--disable-plugin-autoload", "--noconftest", "--capture=no", "--assert=plain", "--import-mode=importlib"]
    for name in ("terminal", "cacheprovider"):
        options += ["-p", f"no:{name}"]
    where = ["-c", str(settings), f"--rootdir={runner.folder}", items.__file__]
    with closing(runner):
        code = pytest.main([*options, *where], plugins=[collector])
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if collector.error is not None:
        raise collector.error
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SuiteError(f"pytest ended with {code!r}")
    return [collector.results.get(one.id) or _not_run(one, runner) for one in checks]


def _not_run(check: Check, runner: Runner) -> Result:
    return replace(result_of(check, "not-run", "pytest did not run it"), replay=runner.subject.replay(check.id))
