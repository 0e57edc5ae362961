"""What pytest collects: one item a check. The plugin object in `suite` gives it its arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from srtkit_conformance.check import Check
from srtkit_conformance.result import Result


def test_check(check: Check, run: Callable[[Check], Result]) -> None:
    """Run one check, and tell pytest in its own words what came of it."""
    result = run(check)
    if result.verdict == "fail":
        pytest.fail(f"{result.message}\n{result.replay}", pytrace=False)
    if result.verdict == "waived":
        pytest.xfail(result.waiver)
