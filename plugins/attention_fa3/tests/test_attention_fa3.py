"""The suite over the operator's double, and what is this backend's own: which calls a step becomes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import srtkit_plugin_attention_fa3 as plugin
from plugins.attention_fa3.tests.conftest import HOPPER
from srtkit.spec.attention import AttentionSpec, MlaDims, Rows
from srtkit.spec.errors import SrtError, Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.attention.case import rows_of
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step
from srtkit_conformance.kits.here import checks_of, wrong
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_conformance.target import Target

Calls = list[dict[str, Any]]
MIXED = rows_of((200, 1), (5, 1), (40, 9), (0, 17))
FULL = [pytest.mark.full, pytest.mark.timeout(600)]
VLLM_ONLY = pytest.mark.parametrize("provider", ["_vllm_fa3_C"], indirect=True)


def step_of(harness: Harness, rows: Sequence[tuple[int, int]], **changes: Any) -> Step:
    case = harness.case(rows_of(*rows), **changes)
    return Step(harness.rig(case), case)


def run(step: Step, calls: Calls, *, fresh: bool = False) -> Calls:
    """Fill, store, attend, hold the result against the gates; the calls that it took."""
    del calls[:]
    step.run(fresh=fresh).check(Margins())
    return list(calls)


# --- the contract


@VLLM_ONLY
@pytest.mark.parametrize(
    "group",
    [
        *("refusals", "parts"),
        *(
            pytest.param(group, marks=FULL)
            for group in ("features", "layout", "numerics", "steps", "memory", "capture")
        ),
    ],
)
def test_it_keeps_the_contract(target: Target, group: str) -> None:
    assert wrong(target, checks_of("attention", (0, 1), [group])) == []


@pytest.mark.parametrize("provider", ["sgl_kernel"], indirect=True)
@pytest.mark.parametrize("group", ["refusals", *(pytest.param(group, marks=FULL) for group in ("features", "capture"))])
def test_so_it_does_over_the_other_provider(target: Target, group: str) -> None:
    assert wrong(target, checks_of("attention", [1], [group])) == []


@pytest.mark.full
@pytest.mark.timeout(900)
def test_it_keeps_the_contract_at_level_2(target: Target) -> None:
    assert wrong(target, checks_of("attention", [2], ("numerics", "features", "steps", "parts"))) == []


@VLLM_ONLY
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [{"schedule": False}, {"num_splits": 1}, {"shared_prefixes": True}], ids=str)
def test_so_it_does_with_other_options(target: Target, options: dict[str, Any]) -> None:
    target = dataclasses.replace(target, options=plugin.Options(**options))
    assert wrong(target, checks_of("attention", [1], ("capture", "parts", "steps"))) == []


def test_on_this_gpu_it_keeps_the_contract() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("there is no Hopper GPU here")
    command = "srtkit conformance run attention:fa3 --device cuda --level 2"
    done = subprocess.run([sys.executable, "-m", *command.split()], capture_output=True, text=True, check=False)
    if "there is no operator" in done.stdout + done.stderr:
        pytest.skip("no package with the operator is installed")
    assert done.returncode == 0, done.stdout


# --- the calls of a step


def test_leading_rows_are_one_call_and_the_rest_another(harness: Harness, calls: Calls) -> None:
    step = step_of(harness, [(200, 1), (5, 1), (40, 9), (0, 17)], leading=2)
    first, second = run(step, calls)
    assert (first["max_seqlen_q"], first["cu_seqlens_q"].tolist()) == (1, [0, 1, 2])
    assert (second["max_seqlen_q"], second["cu_seqlens_q"].tolist()) == (17, [0, 9, 26])
    assert second["page_table"].shape[1] == 4, "as wide as its own longest row needs, 49 tokens"
    for rows, expected in ((Rows.LEADING, 1), (Rows.REST, 17)):
        del calls[:]
        step.attend(rows=rows)
        assert [call["max_seqlen_q"] for call in calls] == [expected]


def test_what_the_host_gives_to_a_decode_call_is_the_same_for_all_lengths(harness: Harness, calls: Calls) -> None:
    """So that a recorded one may be replayed: numbers are equal and tensors stay where they are."""
    cases = [harness.case(rows_of(*rows), leading=2) for rows in ([(200, 1), (30, 1)], [(3, 1), (0, 1)])]
    rig = harness.rig(*cases)
    long, short = (Step(rig, case) for case in cases)
    table = torch.zeros(2, rig.limits.max_pages, dtype=torch.int32)
    short.plan = long.plan
    seen = []
    for step in (long, short):  # as core has it: the width of the table is that of the limits
        table[:, : step.pages.shape[1]] = torch.from_numpy(step.pages)
        step.view = dataclasses.replace(step.view, page_table=table)
        (call,) = run(step, calls)
        numbers = {name: value for name, value in call.items() if not isinstance(value, torch.Tensor)}
        seen.append((numbers, call["page_table"].data_ptr(), call["scheduler_metadata"].data_ptr()))
    assert seen[0] == seen[1]
    assert seen[0][0]["max_seqlen_k"] == table.shape[1] * harness.page


def test_prompts_with_nothing_stored_are_read_without_pages(harness: Harness, calls: Calls) -> None:
    step = step_of(harness, [(70, 1), (0, 40), (0, 9)], leading=1, padding=2, fused=True)
    assert [call["page_table"] is None for call in run(step, calls, fresh=True)] == [False, True]
    assert [call["page_table"] is None for call in run(step, calls)] == [False, False]
    step.batch = dataclasses.replace(step.batch, exact=False)
    assert [call["page_table"] is None for call in run(step, calls, fresh=True)] == [False, False]


def test_after_advance_the_rest_may_be_longer_than_the_host_knows(harness: Harness, calls: Calls) -> None:
    step = step_of(harness, [(70, 1), (0, 9)], leading=1)
    run(step, calls, fresh=True)
    advance = step.rig.backend.parts().advance
    assert advance is not None
    advance.advance(step.plan)
    del calls[:]
    step.attend(fresh=True).check(Margins())
    widths = {call["page_table"].shape[1] for call in calls}
    assert widths == {step.view.page_table.shape[1]}


def test_the_schedule_is_made_once_a_step(harness: Harness, calls: Calls) -> None:
    step = step_of(harness, [(70, 1)], leading=1)
    (call,) = run(step, calls)
    step.batch.context.fill_(60)  # nobody planned for it
    with pytest.raises(RuntimeError, match="not that of these"):
        step.attend()
    target = dataclasses.replace(harness.target, options=plugin.Options(schedule=False))
    (without,) = run(step_of(Harness(target), [(70, 1)], leading=1), calls)
    assert call["scheduler_metadata"] is not None
    assert without["scheduler_metadata"] is None


@VLLM_ONLY
def test_nan_in_freed_pages_shows_unless_they_are_hidden(
    harness: Harness, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The double loads whole tiles as the kernels do: without this the suite could not see the difference."""
    from srtkit_plugin_attention_fa3.backend import Fa3Attention

    rows = [(90, 1), (50, 33)]
    run(step_of(harness, rows, leading=1, window=24, page=1), calls)
    monkeypatch.setattr(Fa3Attention, "_without_freed", lambda self, into, batch, view: view.page_table)
    with pytest.raises(Failed, match="not finite"):
        run(step_of(harness, rows, leading=1, window=24, page=1), calls)


def test_sinks_are_exact_and_for_any_number_of_heads(harness: Harness, calls: Calls) -> None:
    """The operator's own are bfloat16 and for 64 heads."""
    for dtype in ("bfloat16", "float16"):
        run(step_of(harness, [(2, 1), (0, 5)], sinks=True, leading=1, dtype=dtype, kv_heads=2, ratio=40), calls)


@pytest.mark.parametrize(("size", "v_size"), [(192, 128), (64, 256), (40, 512)])
def test_values_of_another_size(size: int, v_size: int) -> None:
    spec = AttentionSpec(4, 2, size, v_size, 0.1, "bfloat16", "bfloat16")
    (layout,) = plugin.kv_layouts(spec, 128, HOPPER)
    assert [plane.shape for plane in layout.planes] == [(128, 2, size), (128, 2, v_size)]
    assert plugin.kv_layouts(dataclasses.replace(spec, head_dim=v_size, v_head_dim=size), 128, HOPPER) == ()


def test_drafts_in_trees_are_attended_to_apart(harness: Harness, calls: Calls) -> None:
    """The operator has what was stored before them, without a mask; what they see of each other is joined to it."""
    rows = [(40, 5), (0, 5), (20, 3)]
    first, second = run(step_of(harness, rows, leading=2, tree=True, sinks=True, soft_cap=2.0), calls)
    assert (first["seqused_k"].tolist(), first["is_causal"]) == ([40, 0], False)
    assert (second["seqused_k"].tolist(), second["is_causal"]) == ([23], True)


@VLLM_ONLY
def test_with_a_window_trees_are_not_the_operators(harness: Harness, calls: Calls) -> None:
    """It would count places, and a window over a tree counts depths."""
    (call,) = run(step_of(harness, [(40, 5), (20, 3)], leading=1, tree=True, window=9, page=7), calls)
    assert call["seqused_k"].tolist() == [23]


def test_latents_are_keys_and_values(harness: Harness, calls: Calls) -> None:
    rows = [(40, 3), (0, 3), (20, 5)]
    for tree in (False, True):
        step = step_of(harness, rows, leading=2, mla=MlaDims(256, 64, 64, 64), ratio=2, tree=tree)
        for call in run(step, calls, fresh=True):
            assert [call[name].shape[-1] for name in ("q", "k", "q_v", "v")] == [64, 64, 256, 256]
            assert call["q"].untyped_storage().data_ptr() == call["q_v"].untyped_storage().data_ptr(), "not copied"


@VLLM_ONLY
def test_rows_that_share_pages_attend_to_them_together(target: Target, calls: Calls) -> None:
    """Two groups and a row without one, then rows that share nothing, in the plan and call of before."""
    harness = Harness(dataclasses.replace(target, options=plugin.Options(shared_prefixes=True)))
    n, shape = 1024 // 64, {"page": 64, "kv_heads": 1, "head_dim": 16, "leading": 5}
    groups = [(1100, 1), (1090, 1, 0, n), (40, 1), (1030, 1), (1024, 1, 3, n)]
    cases = [harness.case(rows_of(*rows), **shape) for rows in (groups, [(1100, 1), (3, 1), (9, 1), (70, 1), (0, 1)])]
    rig = harness.rig(*cases)
    steps = [Step(rig, case) for case in cases]
    seen = []
    for step in (*steps, steps[0]):
        step.plan = steps[0].plan
        own, shared = run(step, calls)
        seen.append((shared["seqused_k"].tolist()[:3], shared["cu_seqlens_q"].tolist()[:4], own["seqused_k"].tolist()))
    assert seen[0] == ([1024, 1024, 0], [0, 2, 4, 4], [77, 67, 41, 7, 1])
    assert seen[1] == ([0, 0, 0], [0, 0, 0, 0], [1101, 4, 10, 71, 1])
    assert seen[2] == seen[0]


# --- what it declares and refuses


@pytest.mark.parametrize(
    "change",
    [
        {"mla": MlaDims(64, 16, 32, 32), "head_dim": 80, "v_head_dim": 64},
        {"mla": MlaDims(512, 64, 128, 128), "head_dim": 576, "v_head_dim": 512, "window": 8},
        {"mla": MlaDims(512, 64, 128, 128), "head_dim": 512, "v_head_dim": 512},
        {"head_dim": 576, "v_head_dim": 576},
        {"kv_dtype": "float8_e4m3fn"},
    ],
    ids=str,
)
def test_layers_without_a_kernel_have_no_layout(change: dict[str, Any]) -> None:
    spec = dataclasses.replace(AttentionSpec(4, 1, 64, 64, 0.1, "bfloat16", "bfloat16"), **change)
    assert plugin.kv_layouts(spec, 128, HOPPER) == ()


@pytest.mark.parametrize(
    "facts",
    [
        DeviceFacts("cuda", "A100", "sm80", dtypes=HOPPER.dtypes),
        DeviceFacts("cuda", "B200", "sm100", dtypes=HOPPER.dtypes),
        DeviceFacts("rocm", "MI300X", "gfx942", dtypes=HOPPER.dtypes),
        DeviceFacts("cpu", "a CPU", "x86_64"),
    ],
    ids=lambda facts: facts.name,
)
def test_other_devices_are_refused_with_the_reason(facts: DeviceFacts) -> None:
    with pytest.raises(Unsupported, match=rf"Hopper \(sm90\) only, and {facts.name} is {facts.platform}"):
        plugin.capabilities(facts)


@VLLM_ONLY
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"causal": False, "window": 8}, "window without a causal mask"),
        ({"kv_dtype": "float16"}, "keeps KV in the model's bfloat16"),
        ({"v_head_dim": 16, "head_dim": 128}, "values of size 16"),
        ({"kv_heads": 4}, "4 KV heads"),
        ({"mla": MlaDims(64, 16, 32, 32)}, "does not read the layout nhd/1"),
        ({"kv_dtype": "float8_e4m3fn"}, "feature fp8_kv"),
    ],
    ids=str,
)
def test_specs_that_it_does_not_cover_are_refused_at_build(
    harness: Harness, change: dict[str, Any], reason: str
) -> None:
    build = harness.rig(harness.case(rows_of((20, 1)))).build
    group = dataclasses.replace(build.group, spec=dataclasses.replace(build.group.spec, **change))
    with pytest.raises(Unsupported, match=reason):
        plugin.build(dataclasses.replace(build, group=group))


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(SrtError, match="pip install triton"):
        plugin.build(None)  # type: ignore[arg-type]
