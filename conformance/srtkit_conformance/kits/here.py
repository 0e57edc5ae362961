"""Checks in the process of a test, on a target that it made: for a plugin whose library or device has a double."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.check import Check
from srtkit_conformance.find import Subject
from srtkit_conformance.runner import Runner
from srtkit_conformance.target import Target

LARGE = "int64"
"""In the id of a check that takes gigabytes."""


def checks_of(kind: str, levels: Sequence[int], groups: Sequence[str]) -> list[Check]:
    """Those of levels and groups (an id's second word), but checks that start processes or take gigabytes."""
    return [
        check
        for check in suite_for(kind).checks()
        if check.level in levels and check.id.split(".")[1] in groups and not check.forks and LARGE not in check.id
    ]


def wrong(target: Target, checks: Sequence[Check]) -> list[str]:
    """Run checks here, where the double is; id and message of each that the target does not pass."""
    runner = Runner(Subject(target.kind, target.name), suite_for(target.kind), target, target.folder)
    results = [runner.run(replace(check, isolated=False)) for check in checks]
    return [f"{result.id}: {result.message}" for result in results if not result.good]
