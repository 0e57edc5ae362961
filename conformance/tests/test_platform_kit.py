"""Level 0 of a platform whose device is not here: what its table assumes is judged instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.tests.conftest import Srt
from srtkit.plugins.loading import load
from srtkit.plugins.registry import discover
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import PlatformDescriptor
from srtkit_conformance.body import run_here
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.check import Check
from srtkit_conformance.checks.platform import declared
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.result import Result
from srtkit_conformance.target import ABSENT, Target

CHECKS = (declared.probe, declared.assume, declared.defaults, declared.rank_environment)
CPU: PlatformDescriptor = load(discover().find("platform", "cpu"))
(FACTS,) = CPU.probe(CPU.options())
NOT_HERE = DeviceFacts("toy", ABSENT, ABSENT)
SM90 = replace(FACTS, platform="toy", name="assumed", architecture="sm90")
Run = Callable[..., dict[str, Result]]


def knowing(*table: DeviceFacts) -> Callable[[str], DeviceFacts | None]:
    """`assume` of these, by their architecture."""
    return {one.architecture: one for one in table}.get


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the checks on the CPU's platform with an empty probe and other changes, as level 0 does."""
    plain = load_target(Subject("platform", "cpu"), suite_for("platform"), tmp_path)

    def ran(facts: DeviceFacts = NOT_HERE, **changes: Any) -> dict[str, Result]:
        descriptor = replace(plain.descriptor, probe=lambda options: [], **changes)
        target: Target = replace(plain, descriptor=descriptor, facts=facts)
        results = [run_here(target, one, "") for one in CHECKS]
        return {one.id.removeprefix("platform."): one for one in results}

    return ran


def verdicts(results: dict[str, Result]) -> list[str]:
    """In the order of `CHECKS`."""
    return [one.verdict for one in results.values()]


def test_an_absent_device_is_judged_by_the_table(run: Run) -> None:
    results = run(assume=knowing(SM90))
    assert verdicts(results) == ["informational", "pass", "pass", "pass"]
    assert "finds no device here" in results["probe"].message
    assert results["assume"].figures == {"architectures": 1}


def test_where_the_table_knows_nothing_it_says_that_nothing_was_judged(run: Run) -> None:
    results = run(assume=knowing())
    assert verdicts(results) == ["informational"] * 4
    assert "the table knows none" in results["defaults"].message


@pytest.mark.parametrize(
    ("check", "changes", "message"),
    [
        (declared.assume, {"assume": lambda name: SM90}, "makes a device of an unknown name"),
        (declared.assume, {"assume": {"sm80": SM90}.get}, "the table's device is another one"),
        (declared.assume, {"assume": knowing(replace(SM90, platform="other"))}, "the table's device is another one"),
        (declared.assume, {"assume": knowing(replace(SM90, memory_bytes=0))}, "memory_bytes is the total"),
        (declared.defaults, {"assume": knowing(replace(SM90, dtypes=frozenset({"float16"})))}, "none of the device's"),
        (
            declared.rank_environment,
            {
                "assume": knowing(SM90),
                "defaults": lambda facts: replace(CPU.defaults(FACTS), environment={"SRT_LOG": "1"}),
            },
            "settings of core",
        ),
    ],
)
def test_a_fault_shows_on_assumed_devices(run: Run, check: Check, changes: dict[str, Any], message: str) -> None:
    result = run(**changes)[check.id.removeprefix("platform.")]
    assert result.verdict == "fail"
    assert message in result.message


def test_a_device_that_was_here_when_the_plugin_was_loaded_must_be_found(run: Run) -> None:
    results = run(facts=FACTS)
    assert verdicts(results) == ["fail"] * 4
    assert "though the plugin was loaded for one" in results["probe"].message


def test_level_0_of_gpus_on_a_machine_without_one(srt: Srt, capfd: pytest.CaptureFixture[str]) -> None:
    cuda = load(discover().find("platform", "cuda"))
    if cuda.probe(cuda.options()):
        pytest.skip("there is a GPU here")
    assert srt("run", "platform:cuda", "--level", 0) == 0
    assert "level 0 reached" in capfd.readouterr().out
