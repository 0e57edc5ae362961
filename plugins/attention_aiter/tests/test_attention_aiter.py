"""The suite over aiter's double, and what is this backend's own: which kernel takes which rows, and with what."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject
from srtkit_conformance.runner import Runner
from srtkit_conformance.target import Target


def wrong(target: Target, checks: Sequence[Any]) -> list[str]:
    """The suite's checks in this process, where the double is."""
    runner = Runner(Subject("attention", "aiter"), suite_for("attention"), target, target.folder)
    results = [runner.run(dataclasses.replace(check, isolated=False)) for check in checks]
    return [f"{result.id}: {result.message}" for result in results if not result.good]


def checks_of(level: int, *groups: str) -> list[Any]:
    """Checks of a level and of these groups; but those that start processes, and one that takes 8 GiB."""
    return [
        check
        for check in suite_for("attention").checks()
        if check.level == level and check.id.split(".")[1] in groups and not check.forks and "int64" not in check.id
    ]


@pytest.mark.parametrize(
    "group",
    [
        *("refusals", "features", "parts"),
        *(
            pytest.param(group, marks=pytest.mark.full)
            for group in ("layout", "numerics", "steps", "memory", "capture")
        ),
    ],
)
def test_it_keeps_the_contract(target: Target, group: str) -> None:
    assert wrong(target, [*checks_of(0, group), *checks_of(1, group)]) == []


@pytest.mark.full
def test_it_keeps_the_contract_at_level_2(target: Target) -> None:
    assert wrong(target, checks_of(2, "numerics", "features", "steps", "parts")) == []
