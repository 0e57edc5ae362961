"""`attention:aiter-vec` over the double: the suite, how tokens stand in vectors, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from plugins.attention_aiter.tests.conftest import FACTS
from plugins.attention_aiter.tests.double import Double, Refused, from_vectors
from plugins.attention_aiter.tests.test_attention_aiter import MI300, MI355, case_of, run
from srtkit.spec.attention import LayerHandle
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.check import Failed
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step
from srtkit_conformance.kits.here import checks_of, wrong
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_conformance.target import Target
from srtkit_plugin_attention_aiter import vec

NEWER = pytest.mark.parametrize(
    "double", ["gfx942 newer", pytest.param("gfx950 newer", marks=pytest.mark.full)], indirect=True
)
MIXED_ROWS = {"rows": ((50, 1), (5, 1), (40, 9), (0, 20)), "leading": 2}
SUBJECT = Subject("attention", "aiter-vec")


@pytest.fixture
def target(double: Double, tmp_path: Path) -> Target:
    """In the place of the one for `aiter`."""
    return dataclasses.replace(load_target(SUBJECT, suite_for("attention"), tmp_path), facts=FACTS[double.architecture])


def _stored(layer: LayerHandle, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """The plugin's `store`, without Triton: the interpreter is slow. It has a test of its own below."""
    page, place, x = slots.long() // 16, slots.long() % 16, 16 // k.itemsize
    layer.planes["k"][page, :, :, place] = k.unflatten(2, (-1, x))
    layer.planes["v"][page, :, place // x, :, place % x] = v


@NEWER
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("level", [1, 2])
def test_it_keeps_the_contract(target: Target, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srtkit_plugin_attention_aiter.vectorised.store", _stored)
    groups = ("refusals", "features", "parts", "layout", "numerics", "steps", "memory", "capture")
    assert wrong(target, checks_of("attention", (0, 1) if level == 1 else [2], groups)) == []


@NEWER
def test_decode_is_one_kernel_and_prompts_another(harness: Harness, double: Double) -> None:
    calls = run(harness, double, **MIXED_ROWS, scale=0.2, fused=True)
    assert [name for name, _ in calls] == ["asm", "prefill"]


@NEWER
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tokens_stand_in_vectors_of_16_bytes(harness: Harness, dtype: str) -> None:
    case = case_of(harness, ((20, 1), (3, 9)), leading=1, dtype=dtype)
    step = Step(harness.rig(case), case)
    step.fill()
    step.store()
    slots = step.view.slot_mapping.long()
    page, *planes = from_vectors(step.layer.planes["k"], step.layer.planes["v"], step.q)
    for plane, new in zip(planes, step.new, strict=True):
        assert torch.equal(plane[slots // page, slots % page], new)


def _rolled(function: Any, which: int) -> Any:
    """What it writes is moved on by one entry."""

    def call(rows: Any, *written: Any, **more: Any) -> None:
        function(rows, *written, **more)
        written[which].copy_(written[which].roll(1, -1))

    return call


FAULTS: dict[str, tuple[str, Any]] = {
    "another page of the table": ("tabulate", lambda f: _rolled(f, 0)),
    "another page of the list": ("list_units", lambda f: _rolled(f, 1)),
    "another row's last page": ("list_units", lambda f: _rolled(f, 2)),
    "a list without a tail": ("LIST_PAD", lambda pad: 0),
}


@NEWER
@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(harness: Harness, double: Double, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    from srtkit_plugin_attention_aiter import indices, step

    name, plant = FAULTS[fault]
    monkeypatch.setattr(step, name, plant(vars(step)[name]))
    monkeypatch.setattr(indices, "LIST_PAD", step.LIST_PAD)
    with pytest.raises((Failed, Refused)):
        run(harness, double, **MIXED_ROWS)


@NEWER
def test_the_scale_that_the_kernel_has_built_in_is_made_up_for(harness: Harness, double: Double) -> None:
    """Without the factor the step is wrong: the double takes head_dim ** -0.5, whatever the spec says."""
    case = case_of(harness, ((40, 1),), leading=1, scale=0.2)
    step = Step(harness.rig(case), case)
    step.rig.backend._factor = 1.0  # type: ignore[attr-defined]
    with pytest.raises(Failed):
        step.run().check(Margins())


@NEWER
def test_more_pages_than_the_kernel_counts_are_refused(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srtkit_plugin_attention_aiter.vectorised.VEC_PAGES", 8)
    case = case_of(harness, **MIXED_ROWS)
    step = Step(harness.rig(case), case)
    step.fill()
    with pytest.raises(Unsupported, match="attention:aiter-vec: reads at most 8 pages"):
        step.attend()


@MI300
@pytest.mark.parametrize(("pages", "heads", "taken"), [(65536, 8, True), (65537, 1, False), (58255, 9, False)])
def test_it_reads_65536_pages_and_2_gib(double: Double, pages: int, heads: int, taken: bool) -> None:
    """Of planes that have no memory: 65,536 pages of 8 heads are both."""
    from srtkit_plugin_attention_aiter.vectorised import VecAttention

    read: list[int] = []
    library = SimpleNamespace(asm=lambda **given: read.append(len(given["K"])))
    call = SimpleNamespace(
        kernel="asm", table=torch.zeros(1, 1, 1, dtype=torch.int32), rows=SimpleNamespace(context=None)
    )
    plane = torch.empty(pages, heads, 16, 16, 8, dtype=torch.bfloat16, device="meta")
    given: Any = (SimpleNamespace(_library=library, _factor=1.0), None, call, LayerHandle(0, {"k": plane, "v": plane}))
    q = torch.empty(1, heads, 128)
    if taken:
        VecAttention.run(*given, q, q)
    else:
        with pytest.raises(Unsupported, match=f"at most 65536 pages and 2 GiB a plane, and a layer has {pages} pages"):
            VecAttention.run(*given, q, q)
    assert read == [pages] * taken


@NEWER
def test_queries_are_not_touched_where_the_scale_is_the_kernels_own(harness: Harness, double: Double) -> None:
    """128 ** -0.5 * 128 ** 0.5 is not 1."""
    case = case_of(harness, ((40, 1),), leading=1, scale=128**-0.5, fused=True)
    step = Step(harness.rig(case), case)
    step.run().check(Margins())
    assert double.log[-1][1]["Q"].data_ptr() == step.q.data_ptr()


def test_its_errors_have_its_name() -> None:
    with pytest.raises(Unsupported, match="attention:aiter-vec: its kernels are for AMD's"):
        vec.capabilities(DeviceFacts("cuda", "H100", "sm90"))


@MI300
def test_0_1_7_has_no_prompts_over_such_pages(harness: Harness) -> None:
    with pytest.raises(Unsupported, match=r"with an aiter after 0\.1\.7 only"):
        harness.rig(case_of(harness, **MIXED_ROWS))


@MI355
def test_drafts_are_refused(harness: Harness) -> None:
    case = case_of(harness, ((20, 3), (4, 3)), leading=2)
    with pytest.raises(Unsupported, match="at most 1 queries"):
        Step(harness.rig(case), case).fill()
