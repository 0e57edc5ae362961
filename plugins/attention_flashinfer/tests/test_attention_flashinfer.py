"""The suite over FlashInfer's double, and what is this backend's own: how a step is planned, and what is recorded."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import srtkit_plugin_attention_flashinfer as plugin
from plugins.attention_flashinfer.tests.conftest import HOPPER
from plugins.attention_flashinfer.tests.double import PROCESSORS, Log, Ran
from srtkit.spec.attention import AttentionSpec, Batch, GroupView, MlaDims, Rows
from srtkit.spec.errors import DeviceAbsent, SrtError, Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.attention.case import rows_of
from srtkit_conformance.kits.attention.harness import Harness, Rig
from srtkit_conformance.kits.attention.step import Step
from srtkit_conformance.kits.here import checks_of, wrong
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_conformance.target import Target

FULL = [pytest.mark.full, pytest.mark.timeout(600)]
DECODE, PREFILL = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"


def step_of(harness: Harness, rows: Sequence[tuple[int, int]], **changes: Any) -> Step:
    case = harness.case(rows_of(*rows), **changes)
    return Step(harness.rig(case), case)


def run(step: Step, runs: Log, *, rows: Rows = Rows.ALL) -> list[Ran]:
    """Fill, store, attend, hold the result against the gates; what ran."""
    del runs[:]
    step.run(rows=rows).check(Margins())
    return list(runs)


# --- the contract


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


@pytest.mark.full
@pytest.mark.timeout(900)
def test_it_keeps_the_contract_at_level_2(target: Target) -> None:
    assert wrong(target, checks_of("attention", [2], ("numerics", "features", "steps", "parts"))) == []


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [{"tensor_cores": "always"}, {"prefill": "fa3"}], ids=str)
def test_so_it_does_with_other_options(target: Target, options: dict[str, Any]) -> None:
    target = dataclasses.replace(target, options=plugin.Options(**options))
    assert wrong(target, checks_of("attention", [1], ("capture", "parts"))) == []


def test_on_this_gpu_it_keeps_the_contract() -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 8:
        pytest.skip("there is no GPU from sm80 on here")
    pytest.importorskip("flashinfer", reason="flashinfer is not installed")
    command = "srtkit conformance run attention:flashinfer --device cuda --level 2"
    done = subprocess.run([sys.executable, "-m", *command.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# --- how a step is planned


def test_leading_rows_are_decoded_and_the_rest_are_prompts(harness: Harness, runs: Log) -> None:
    step = step_of(harness, [(200, 1), (5, 1), (40, 9), (0, 17)], leading=2)
    first, second = run(step, runs)
    assert (first.wrapper, first.plan["device"]["cu_q"].tolist()) == (DECODE, [0, 1, 2])
    assert (second.wrapper, second.plan["device"]["cu_q"].tolist()) == (PREFILL, [0, 9, 26])
    for rows, expected in ((Rows.LEADING, DECODE), (Rows.REST, PREFILL)):
        del runs[:]
        step.attend(rows=rows)
        assert [one.wrapper for one in runs] == [expected]


@pytest.mark.parametrize(
    ("ratio", "option", "expected"),
    [(3, "auto", False), (4, "auto", True), (5, "auto", True), (1, "always", True), (8, "never", False)],
)
def test_tensor_cores_decode_where_they_pay(target: Target, runs: Log, ratio: int, option: Any, expected: bool) -> None:
    harness = Harness(dataclasses.replace(target, options=plugin.Options(tensor_cores=option)))
    (ran,) = run(step_of(harness, [(30, 1)], leading=1, ratio=ratio), runs)
    assert ran.tensor_cores is expected


def test_offsets_are_on_the_host_and_pages_on_the_device(harness: Harness, runs: Log) -> None:
    """Else the library would wait for the device, or copy pages from memory that is not pinned."""
    step = step_of(harness, [(200, 1), (5, 1), (40, 9)], leading=2)
    for one in run(step, runs):
        blocks = [numbers.indptr.untyped_storage().data_ptr() for numbers in step.plan.numbers]  # type: ignore[attr-defined]
        names = {"indptr", "last_page_len", "seq_lens", "qo_indptr", "paged_kv_indptr", "paged_kv_last_page_len"}
        given = [one.plan[name] for name in names & one.plan.keys()]
        assert len(given) == (3 if one.wrapper == DECODE else 4)
        assert all(x.untyped_storage().data_ptr() in blocks for x in given)
        pages = one.plan["indices" if one.wrapper == DECODE else "paged_kv_indices"]
        assert pages.untyped_storage().data_ptr() == step.plan.pages.untyped_storage().data_ptr()  # type: ignore[attr-defined]


def deep(rig: Rig, depth: int) -> Rig:
    """As with steps under way while the next is planned."""
    rig.limits = dataclasses.replace(rig.limits, depth=depth)
    return rig


def test_host_memory_of_a_step_is_not_written_while_the_next_is_planned(harness: Harness, runs: Log) -> None:
    case = harness.case(rows_of((200, 1), (5, 9)), leading=1)
    step = Step(deep(harness.rig(case), 1), case)
    seen = []
    for _ in range(3):
        seen.append([(one.plan[name].data_ptr()) for one in run(step, runs) for name in ("seq_lens",)])
    assert seen[0] == seen[2]
    assert not set(seen[0]) & set(seen[1])


@pytest.mark.parametrize("ratio", [3, 4], ids=["cuda-cores", "tensor-cores"])
@pytest.mark.parametrize("n", [1, 4])
def test_a_recorded_step_is_right_under_later_fills(harness: Harness, runs: Log, n: int, ratio: int) -> None:
    """The kernel of the first fill, with what it was given then, after a wrapper of another turn has planned."""
    cases = [harness.case(rows_of(*rows), leading=2, ratio=ratio) for rows in ([(200, n), (30, n)], [(3, n), (160, n)])]
    rig = deep(harness.rig(*cases), 1)
    first, second = (Step(rig, case) for case in cases)
    (recorded,) = run(first, runs)
    assert recorded.graph
    static = recorded.out
    for name, plane in second.layer.planes.items():
        first.layer.planes[name][: len(plane)].copy_(plane)
    for mine, other in zip((first.q, *first.new), (second.q, *second.new), strict=True):
        mine.copy_(other)
    second.plan, second.layer = first.plan, first.layer
    second.fill()
    second.store()
    wanted = second.attend()
    wanted.check(Margins())
    with torch.inference_mode():
        static.zero_()
        recorded.kernel()
    assert torch.equal(static, wanted.out)


def test_one_wrapper_of_each_turn_shares_the_schedule_on_the_device(harness: Harness, runs: Log) -> None:
    """A schedule of another turn would not be that of this step: the double compares."""
    case = harness.case(rows_of((200, 1)), leading=1)
    step = Step(deep(harness.rig(case), 2), case)
    for _ in range(4):
        (ran,) = run(step, runs)
    recorded = ran.kernel
    step.plan.schedules[0].zero_()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="schedule is of other rows or lengths"):
        recorded()


def test_other_shapes_than_the_first_are_not_recorded(harness: Harness, runs: Log) -> None:
    cases = [harness.case(rows_of(*rows), leading=len(rows)) for rows in ([(70, 1), (5, 1)], [(40, 1)], [(40, 3)])]
    rig = harness.rig(*cases)
    steps = [Step(rig, case) for case in cases]
    seen = []
    for step in (*steps, steps[0]):
        step.plan = steps[0].plan
        seen += [(one.wrapper, one.graph) for one in run(step, runs)]
    assert seen == [(DECODE, True), (DECODE, False), (PREFILL, False), (DECODE, True)]


@pytest.mark.parametrize("ratio", [1, 4, 16])
@pytest.mark.parametrize("n", [1, 16])
@pytest.mark.parametrize("rows", [1, 65, 66, 256])
def test_the_room_suffices_whatever_the_step(harness: Harness, runs: Log, rows: int, n: int, ratio: int) -> None:
    """The double computes what the planner allocates, and refuses a workspace below it."""
    rig = harness.rig(harness.case(rows_of((90, n)) * rows, leading=rows, ratio=ratio, kv_heads=4))
    context = np.array([n + 17 * row % 90 for row in range(rows)], np.int32)
    cu_q = torch.arange(0, (rows + 1) * n, n, dtype=torch.int32)
    table = np.zeros((rows, rig.limits.max_pages), np.int32)
    batch = Batch(
        rows=rows,
        tokens=rows * n,
        leading=rows,
        q_len=n,
        cu_q=cu_q,
        context=torch.from_numpy(context),
        positions=cu_q,
        slots=cu_q,
        host_q=np.full(rows, n, np.int32),
        host_context=context,
    )
    plan = rig.new_plan()
    rig.backend.fill(plan, batch, GroupView(harness.page, torch.from_numpy(table), cu_q, table))
    uncut = plan.leading.wrapper.planned["disable_split_kv"]  # type: ignore[attr-defined]
    packed = n * ratio
    tile = 16 if packed <= 16 else 64 if packed <= 64 else 128
    assert uncut == (rows * -(-packed // tile) >= 2 * PROCESSORS // 4)


@pytest.mark.parametrize("window", [0, 9])
def test_trees_are_masks(harness: Harness, runs: Log, window: int) -> None:
    """The first shape is recorded, with a mask in the plan's buffer; a later one has its own."""
    cases = [
        harness.case(rows_of(*rows), leading=leading, tree=True, window=window)
        for rows, leading in (([(70, 5), (3, 5)], 2), ([(40, 7), (20, 3)], 1))
    ]
    rig = harness.rig(*cases)
    steps = [Step(rig, case) for case in cases]
    seen = []
    for step in (*steps, steps[0]):
        step.plan = steps[0].plan
        first = run(step, runs)[0]
        seen.append((first.wrapper, first.graph, first.plan["window_left"]))
        assert first.plan["packed_custom_mask"] is not None
    assert seen == [(PREFILL, True, -1), (PREFILL, False, -1), (PREFILL, True, -1)]


def test_scales_of_fp8_go_to_queries_and_results(harness: Harness, runs: Log) -> None:
    """A scale for each KV head of keys, one for values; decode rows take tensor cores, prompts fa2."""
    step = step_of(harness, [(70, 1), (3, 66)], leading=1, kv_dtype="float8_e4m3fn", kv_heads=2, ratio=3)
    given = step.q.clone()
    first, second = run(step, runs)
    assert (first.wrapper, first.tensor_cores, second.backend) == (DECODE, True, "fa2")
    assert all(one.plan["kv_data_type"] == torch.float8_e4m3fn for one in (first, second))
    assert torch.equal(step.q, given)


def test_nan_in_freed_pages_shows_unless_they_are_hidden(
    harness: Harness, runs: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The double loads whole tiles as the kernels do: without this the suite could not see the difference."""
    rows = [(90, 1), (50, 33)]
    run(step_of(harness, rows, leading=1, window=24, page=1), runs)
    from srtkit_plugin_attention_flashinfer.kernels import pages_kernel

    class Seeing:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **constants: pages_kernel[grid](*args, **constants | {"WINDOW": 0})

    monkeypatch.setattr("srtkit_plugin_attention_flashinfer.backend.pages_kernel", Seeing())
    with pytest.raises(Failed, match="not finite"):
        run(step_of(harness, rows, leading=1, window=24, page=1), runs)


def test_out_and_q_may_be_strided(harness: Harness, runs: Log) -> None:
    step = step_of(harness, [(20, 1), (0, 5)], leading=1, fused=True)
    wanted = step.run()
    wanted.check(Margins())
    out = torch.zeros(*step.q.shape[:2], 2 * step.q.shape[2], dtype=step.q.dtype)[..., : step.q.shape[2]]
    step.rig.backend.attend(step.plan, step.layer, step.q.transpose(0, 1).contiguous().transpose(0, 1), out)
    assert torch.equal(out, wanted.out)


# --- what it declares and refuses


@pytest.mark.parametrize(
    "facts",
    [
        DeviceFacts("cuda", "T4", "sm75", dtypes=HOPPER.dtypes),
        DeviceFacts("rocm", "MI300X", "gfx942", dtypes=HOPPER.dtypes),
        DeviceFacts("cpu", "a CPU", "x86_64"),
    ],
    ids=lambda facts: facts.name,
)
def test_other_devices_are_refused_with_the_reason(facts: DeviceFacts) -> None:
    with pytest.raises(Unsupported, match=rf"from sm80 on, and {facts.name} is {facts.platform}"):
        plugin.capabilities(facts)


@pytest.mark.parametrize("architecture", ["sm80", "sm89", "sm90", "sm100", "sm120"])
def test_later_ones_are_taken(architecture: str) -> None:
    can = plugin.capabilities(DeviceFacts("cuda", "a GPU", architecture, dtypes=HOPPER.dtypes))
    assert can.dtypes == {"bfloat16", "float16"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"causal": False, "window": 8}, "window without a causal mask"),
        ({"kv_dtype": "float16"}, "keeps KV in the model's bfloat16"),
        ({"v_head_dim": 128}, "values of size 128"),
        ({"kv_heads": 4}, "4 KV heads"),
        ({"mla": MlaDims(64, 16, 32, 32)}, "feature mla"),
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


def test_a_ratio_without_a_kernel_on_cuda_cores_is_refused(target: Target) -> None:
    harness = Harness(dataclasses.replace(target, options=plugin.Options(tensor_cores="never")))
    with pytest.raises(Unsupported, match="no decode kernel without tensor cores for 5 query heads"):
        harness.rig(harness.case(rows_of((20, 1)), ratio=5))


def test_bounds_in_place_of_lengths_are_refused(harness: Harness) -> None:
    step = step_of(harness, [(20, 1)], leading=1)
    step.batch.exact = False
    with pytest.raises(Unsupported, match="plans by exact lengths"):
        step.fill()


def test_values_of_another_size_have_no_layout() -> None:
    spec = AttentionSpec(4, 2, 192, 128, 0.1, "bfloat16", "bfloat16")
    assert plugin.kv_layouts(spec, 16, HOPPER) == ()


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(SrtError, match="pip install triton"):
        plugin.build(None)  # type: ignore[arg-type]


def test_kernels_that_cannot_be_compiled_are_reported_at_start(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("Could not find nvcc")

    monkeypatch.setattr(sys.modules["flashinfer"].BatchPrefillWithPagedKVCacheWrapper, "do_plan", no_compiler)
    with pytest.raises(
        DeviceAbsent, match=r"neither build nor load its kernels: Could not find nvcc(.|\n)*install nvcc"
    ):
        harness.rig(harness.case(rows_of((20, 1))))
