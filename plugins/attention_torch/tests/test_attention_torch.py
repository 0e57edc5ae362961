"""The suite on both paths, and what is this backend's own: which path a step takes, its cut, its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

import srtkit_plugin_attention_torch as plugin
from srtkit.spec.attention import AttentionSpec, LayerHandle, MlaDims, Rows
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.inside import shortcomings
from srtkit_conformance.kits.attention.case import Case, rows_of
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step
from srtkit_conformance.kits.numeric.gates import Margins

SHARED = rows_of((1030, 1), (1040, 1, 0, 64), (1050, 1, 0, 64), (5, 1))
SHARED_PROMPTS = rows_of((1040, 20), (1024, 20, 0, 64), (1024, 20, 0, 64), (0, 20), (37, 20), (0, 20))
FACTS = DeviceFacts("cpu", "test", "x86_64", dtypes=frozenset({"float32", "bfloat16"}))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Many small operations: a second thread would mostly wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """The suite's, for this backend with its default options."""
    return Harness(load_target(Subject("attention", "torch"), suite_for("attention"), tmp_path))


def run(step: Step, *, fresh: bool = False) -> torch.Tensor:
    """Fill, store, attend, and hold the result against the gates."""
    result = step.run(fresh=fresh)
    result.check(Margins())
    return result.out


def first_call(step: Step) -> tuple[int, int]:
    """Tokens of the first kernel call of a step that took the fast path."""
    call = step.plan.calls[Rows.ALL][0]  # type: ignore[attr-defined]
    return call.first, call.stop


def step_of(harness: Harness, case: Case) -> Step:
    return Step(harness.rig(case), case)


# --- the contract


def test_it_keeps_the_contract() -> None:
    assert shortcomings("attention:torch", level=2) == []


def test_so_does_the_reference_path() -> None:
    assert shortcomings("attention:torch", level=2, fast=False) == []


def test_so_does_a_workspace_that_holds_few_keys() -> None:
    assert shortcomings("attention:torch", workspace_kib=16) == []


# --- the fast path


@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("rows", [((99, 1),), ((0, 70),), ((0, 17),) * 3, ((80, 1), (0, 25), (65, 20))], ids=str)
def test_plain_layers_take_the_fast_path(harness: Harness, rows: Sequence[tuple[int, int]], window: int) -> None:
    step = step_of(harness, harness.case(rows_of(*rows), window=window))
    run(step)
    first_call(step)


@pytest.mark.parametrize(("rows", "leading"), [(SHARED, 4), (SHARED_PROMPTS, 0)], ids=["decode", "prompts"])
def test_a_shared_prefix_is_read_once(harness: Harness, rows: Sequence[tuple[int, int]], leading: int) -> None:
    step = step_of(harness, harness.case(rows, leading=leading, kv_heads=1))
    run(step)
    assert first_call(step) == (0, sum(row.n_query for row in rows[:3]))


def test_the_hint_of_prefix_groups_changes_the_cut(harness: Harness) -> None:
    step = step_of(harness, harness.case(SHARED, leading=4, kv_heads=1))
    step.group(0, 2, 64)
    run(step)
    assert first_call(step) == (0, 2)


def test_fresh_keys_change_no_bit(harness: Harness) -> None:
    for rows in (rows_of((0, 40), (0, 9), (0, 9), (37, 20)), SHARED_PROMPTS):
        step = step_of(harness, harness.case(rows, kv_heads=1))
        assert torch.equal(run(step, fresh=True), run(step))


def test_pages_in_a_row_but_for_two_in_the_middle(harness: Harness) -> None:
    step = step_of(harness, harness.case(rows_of((0, 96)), permuted=False))
    step.pages[0, [2, 3]] = step.pages[0, [3, 2]]
    step.view = step.view_of(step.pages, step.n_query, step.context)
    run(step)


def test_a_tree_after_a_plain_step_on_one_plan(harness: Harness) -> None:
    cases = [harness.case(rows_of((30, 9), (5, 9)), leading=2, tree=tree) for tree in (False, True)]
    rig = harness.rig(*cases)
    plain, tree = (Step(rig, case) for case in cases)
    tree.plan = plain.plan
    for step in (plain, tree, plain):
        run(step)


def test_new_planes_under_an_old_layer_index_are_noticed(harness: Harness) -> None:
    step = step_of(harness, harness.case(rows_of((50, 1)), leading=1))
    before = run(step)
    old = step.layer.planes
    step.layer = LayerHandle(0, {name: plane.clone() for name, plane in old.items()})
    for plane in old.values():
        plane.fill_(torch.nan)
    assert torch.equal(step.attend().out, before)


def test_the_number_of_threads_changes_no_bit(harness: Harness) -> None:
    rows = rows_of((1030, 1), (1030, 1, 0, 64), (0, 40), (0, 40), (200, 33))
    step = step_of(harness, harness.case(rows, leading=2))
    alone = run(step)
    torch.set_num_threads(2)
    assert torch.equal(run(step), alone)


# --- what it declares and refuses


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"causal": False, "window": 8}, "window without a causal mask"),
        ({"mla": MlaDims(64, 16, 32, 32), "kv_heads": 2}, "absorbed form"),
    ],
)
def test_specs_that_mean_nothing_are_refused_at_build(harness: Harness, change: dict[str, object], reason: str) -> None:
    build = harness.rig(harness.case(rows_of((10, 1)))).build
    group = dataclasses.replace(build.group, spec=dataclasses.replace(build.group.spec, **change))  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match=reason):
        plugin.build(dataclasses.replace(build, group=group))


def test_a_foreign_layout_is_refused_at_build(harness: Harness) -> None:
    plain = harness.rig(harness.case(rows_of((10, 1)))).build
    large = dataclasses.replace(plain.layout, page_tokens=512)
    with pytest.raises(Unsupported, match="pages of 512"):
        plugin.build(dataclasses.replace(plain, layout=large))
    latent = harness.rig(harness.case(rows_of((10, 1)), mla=harness.mla)).build
    with pytest.raises(Unsupported, match="layout nhd/1"):
        plugin.build(dataclasses.replace(latent, layout=plain.layout))


def test_dtypes_that_the_device_lacks_are_not_offered() -> None:
    assert plugin.capabilities(FACTS).dtypes == {"float32", "bfloat16"}


def test_layouts() -> None:
    spec = AttentionSpec(9, 3, 64, 64, 0.125, "bfloat16", "float8_e4m3fn")
    (layout,) = plugin.kv_layouts(spec, 16, FACTS)
    assert (layout.name, layout.page_bytes, layout.over_read) == ("nhd/1", 2 * 16 * 3 * 64, 0)
    assert plugin.kv_layouts(spec, 512, FACTS) == ()
    sizes = plugin.capabilities(FACTS).page_sizes
    assert sizes[0] == 16
    assert set(sizes) == set(range(1, 257))


def test_options_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValidationError):
        plugin.Options.model_validate({"fats": True})
