"""`attention:aiter-vec` over the double: the suite, how tokens stand in vectors, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from plugins.attention_aiter.tests.conftest import FACTS
from plugins.attention_aiter.tests.double import Double, _from_vectors
from plugins.attention_aiter.tests.test_attention_aiter import MI355, MIXED, case_of, checks_of, run
from srtkit.spec.errors import Unsupported
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.check import Failed
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step
from srtkit_conformance.runner import Runner
from srtkit_conformance.target import Target

NEWER = pytest.mark.parametrize(
    "double", ["gfx942 newer", pytest.param("gfx950 newer", marks=pytest.mark.full)], indirect=True
)
SUBJECT = Subject("attention", "aiter-vec")


@pytest.fixture
def target(double: Double, tmp_path: Path) -> Target:
    """In the place of the one for `aiter`."""
    return dataclasses.replace(load_target(SUBJECT, suite_for("attention"), tmp_path), facts=FACTS[double.architecture])


@NEWER
@pytest.mark.full
@pytest.mark.parametrize("level", [1, 2])
def test_it_keeps_the_contract(target: Target, level: int) -> None:
    groups = ("refusals", "features", "parts", "layout", "numerics", "steps", "memory", "capture")
    checks = [*checks_of(0, *groups), *checks_of(1, *groups)] if level == 1 else checks_of(2, *groups)
    runner = Runner(SUBJECT, suite_for("attention"), target, target.folder)
    results = [runner.run(dataclasses.replace(check, isolated=False)) for check in checks]
    assert [f"{result.id}: {result.message}" for result in results if not result.good] == []


@NEWER
def test_decode_is_one_kernel_and_prompts_another(harness: Harness, double: Double) -> None:
    calls = run(harness, double, **MIXED, scale=0.2, fused=True)
    assert [name for name, _ in calls] == ["asm", "prefill"]


@NEWER
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tokens_stand_in_vectors_of_16_bytes(harness: Harness, dtype: str) -> None:
    case = case_of(harness, ((20, 1), (3, 9)), leading=1, dtype=dtype)
    step = Step(harness.rig(case), case)
    step.fill()
    step.store()
    slots = step.view.slot_mapping.long()
    page, *planes = _from_vectors(step.layer.planes["k"], step.layer.planes["v"], step.q)
    for plane, new in zip(planes, step.new, strict=True):
        assert torch.equal(plane[slots // page, slots % page], new)


@NEWER
@pytest.mark.parametrize(
    ("place", "plant"),
    [
        ("vectorised.tabulate", lambda f: lambda rows, table, lengths, unit: f(rows, table, lengths, unit=1)),
        ("vectorised.list_units", lambda f: lambda rows, *to, unit: f(rows, *to, unit=1)),
        ("vectorised.LIST_PAD", lambda pad: 0),
    ],
    ids=["a table of slots", "a list of slots", "a list without room for its tail"],
)
def test_faults_are_found(
    harness: Harness, double: Double, monkeypatch: pytest.MonkeyPatch, place: str, plant: Any
) -> None:
    from srtkit_plugin_attention_aiter import vectorised

    name = place.partition(".")[2]
    monkeypatch.setattr(vectorised, name, plant(vars(vectorised)[name]))
    if name == "LIST_PAD":
        monkeypatch.setattr("srtkit_plugin_attention_aiter.indices.LIST_PAD", 0)
    with pytest.raises((Failed, Exception), match=r"gate|double of aiter|not finite|out of the cache"):
        run(harness, double, **MIXED)


@NEWER
def test_more_pages_than_the_kernel_counts_are_refused(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srtkit_plugin_attention_aiter.vectorised.VEC_PAGES", 8)
    case = case_of(harness, **MIXED)
    step = Step(harness.rig(case), case)
    step.fill()
    with pytest.raises(Unsupported, match="reads at most 8 pages"):
        step.attend()


def test_0_1_7_has_no_prompts_over_such_pages(harness: Harness) -> None:
    with pytest.raises(Unsupported, match=r"with an aiter after 0\.1\.7 only"):
        harness.rig(case_of(harness, **MIXED))


@MI355
def test_drafts_are_refused(harness: Harness) -> None:
    case = case_of(harness, ((20, 3), (4, 3)), leading=2)
    with pytest.raises(Unsupported, match="at most 1 queries"):
        Step(harness.rig(case), case).fill()
