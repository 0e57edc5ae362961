"""The kernels against the conformance kit's truth, over a pairwise set of small steps; tiles, and what is refused.

On a GPU the whole suite runs too. The interpreter is slow, so steps are small, and wrong in bfloat16.
"""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import srtkit_plugin_attention_triton as plugin
from srtkit.spec.attention import AttentionSpec, LayerHandle, MlaDims, Rows
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.attention.case import Case, Row, rows_of
from srtkit_conformance.kits.attention.content import Content
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_conformance.kits.numeric.pairs import pairwise
from srtkit_plugin_attention_triton import backend, shared
from srtkit_plugin_attention_triton.arguments import group_of
from srtkit_plugin_attention_triton.slots import store
from srtkit_plugin_attention_triton.tiles import MAX_SEGMENTS, Kind, Tile, fitting, segments, tile_for

SHAPES: dict[str, tuple[tuple[Row, ...], int]] = {
    "decode": (rows_of((41, 1), (3, 1), (16, 1)), 3),
    "drafts": (rows_of((30, 4), (0, 4)), 2),
    "prompts": (rows_of((0, 17), (21, 9)), 0),
    "mixed": (rows_of((40, 1), (5, 1), (13, 8), (0, 1)), 2),
}
FACTORS: dict[str, Sequence[Any]] = {
    "shape": list(SHAPES),
    "dtype": ["float32", "float16"],
    "page": [16, 1, 7, 64],
    "head_dim": [64, 40],
    "ratio": [1, 3, 4],
    "window": [0, 1, 19],
    "soft_cap": [0.0, 8.0],
    "sinks": [False, True],
    "padding": [0, 2],
    "fused": [False, True],
    "adjacent": [True, False],
    "kv_dtype": ["", "float8_e4m3fn"],
}


@pytest.fixture
def harness(device: str, tmp_path: Path) -> Harness:
    """The suite's, on the GPU or in the interpreter."""
    return Harness(load_target(Subject("attention", "triton", device), suite_for("attention"), tmp_path))


def case_of(harness: Harness, shape: str = "decode", **changes: Any) -> Case:
    rows, leading = SHAPES[shape]
    return harness.case(rows, leading=leading, kv_heads=2, **changes)


def run(harness: Harness, case: Case) -> Margins:
    margins = Margins()
    step = Step(harness.rig(case), case)
    step.run().check(margins)
    step.plan.close()
    return margins


@pytest.mark.parametrize("factors", pairwise(FACTORS), ids=lambda f: "-".join(str(one) for one in f.values()))
def test_steps(harness: Harness, factors: dict[str, Any]) -> None:
    run(harness, case_of(harness, **factors))


def test_without_a_causal_mask(harness: Harness) -> None:
    for shape in ("decode", "prompts"):
        run(harness, case_of(harness, shape, causal=False, dtype="float32"))


def test_values_of_another_size(harness: Harness) -> None:
    """Cases have one size; the layout of the backend is asked for another."""
    spec = dataclasses.replace(case_of(harness).spec, v_head_dim=24)
    (layout,) = plugin.kv_layouts(spec, 16, harness.target.facts)
    assert [plane.shape for plane in layout.planes] == [(16, 2, 64), (16, 2, 24)]


LATENT = MlaDims(64, 16, 32, 32)
LATENT_FACTORS: dict[str, Sequence[Any]] = {
    "shape": ["decode", "drafts", "prompts"],
    "dtype": ["float32", "float16"],
    "kv_dtype": ["", "float8_e4m3fn"],
    "ratio": [16, 3],
    "page": [16, 7],
}


@pytest.mark.parametrize("factors", pairwise(LATENT_FACTORS), ids=lambda f: "-".join(str(one) for one in f.values()))
def test_latent_layers(harness: Harness, factors: dict[str, Any]) -> None:
    run(harness, case_of(harness, **factors, mla=LATENT))


@pytest.mark.parametrize("changes", [{"ratio": 80, "mla": LATENT}, {"ratio": 16, "mla": MlaDims(512, 64, 128, 128)}])
def test_latent_layers_of_more_heads_than_a_program_has_and_of_the_usual_size(
    harness: Harness, changes: dict[str, Any]
) -> None:
    run(harness, harness.case(rows_of((19, 1), (2, 1)), leading=2, dtype="float16", **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float32", "window": 6},
        {"dtype": "float16", "page": 7, "kv_dtype": "float8_e4m3fn"},
        {"dtype": "float32", "ratio": 16, "mla": LATENT},
    ],
    ids=["window", "fp8", "latent"],
)
def test_drafts_in_a_tree(harness: Harness, changes: dict[str, Any]) -> None:
    """Beside rows without one."""
    rows = rows_of((40, 9), (0, 9), (33, 9), (0, 5), (20, 1))
    run(harness, harness.case(rows, tree=True, leading=3, **changes))


def test_a_tree_of_as_many_drafts_as_there_may_be(harness: Harness) -> None:
    run(harness, harness.case(rows_of((21, 64)), tree=True, leading=1, kv_heads=1, dtype="float32"))


def test_fp8_without_scales(harness: Harness) -> None:
    """As if they were 1."""
    case = case_of(harness, "mixed", dtype="float32", kv_dtype="float8_e4m3fn")
    scales = {name: torch.tensor(1.0) for name in ("q", "k", "v")}
    step = Step(harness.rig(case), case, content=Content(case, harness.target.rng("ones"), scales))
    step.layer = dataclasses.replace(step.layer, scales=None)
    step.run().check(Margins())


def test_what_is_stored_in_fp8(harness: Harness) -> None:
    """Divided by the head's scale, rounded to the nearest, saturated; NaN stays NaN."""
    new = torch.randn(3, 2, 40) * 200
    new[0, 0, :3] = torch.tensor([1e4, -1e4, torch.nan])
    planes = {name: torch.zeros(2, 7, 2, 40).to(torch.float8_e4m3fn).to(harness.device) for name in ("k", "v")}
    scales = {"k": torch.tensor([0.7, 1.3]), "v": torch.tensor(1.1)}
    layer = LayerHandle(0, planes, scales={name: scale.to(harness.device) for name, scale in scales.items()})
    slots = torch.tensor([9, 3, 13], dtype=torch.int32)
    store(layer, slots.to(harness.device), (new.to(harness.device), new.to(harness.device)))
    for name, scale in scales.items():
        wanted = (new / scale.reshape(-1, 1)).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored = planes[name].cpu().view(torch.uint8).flatten(0, 1)[slots.long()]
        assert torch.equal(stored, wanted.view(torch.uint8)), name


MIXED = {
    "one_among_others": (((40, 1), (9, 20), (33, 1), (2, 8)), {}),
    "none_of_one": (((40, 10), (9, 17), (0, 3)), {"padding": 1, "over": 0}),
    "all_of_one": (((40, 1), (9, 1)), {"padding": 2, "over": 28}),
    "few_and_padding": (((5, 11),), {"padding": 3, "over": 19}),
}


def test_a_step_of_any_rows_is_recorded_for_all_others(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps without leading rows, of 4 rows and 30 tokens, padded as core does: the same launches, right numbers."""
    launches: list[Any] = []
    for module, name in ((backend, "attend_kernel"), (backend, "merge_kernel"), (shared, "prefix_kernel")):
        monkeypatch.setattr(module, name, Recorder(getattr(module, name), launches))
    monkeypatch.setattr(shared, "WORTH", 1)
    cases = [harness.case(rows_of(*rows), dtype="float32", **padding) for rows, padding in MIXED.values()]
    rig, seen = harness.rig(*cases), []
    for case in cases:
        step = Step(rig, case)
        launches.clear()
        step.run().check(Margins())
        seen.append(list(launches))
    assert len(seen[0]) == 4
    assert all(one == seen[0] for one in seen)


class Recorder:
    """A kernel whose launches are noted: grid, numbers and constants."""

    def __init__(self, kernel: Any, launches: list[Any]) -> None:
        self.kernel = kernel
        self.launches = launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*given: Any, **constants: Any) -> None:
            self.launches.append((grid, [one for one in given if not isinstance(one, torch.Tensor)], constants))
            self.kernel[grid](*given, **constants)

        return launch


def test_rotation_and_store_in_one_are_those_one_after_the_other(device: str, tmp_path: Path) -> None:
    """The suite's check, which comes through the interpreter in little time."""
    suite = suite_for("attention")
    check = next(one for one in suite.checks() if one.id == "attention.parts.store_rotated")
    check.body(load_target(Subject("attention", "triton", device), suite, tmp_path))


@pytest.mark.parametrize("rows", [Rows.LEADING, Rows.REST])
def test_leading_rows_and_the_rest_apart(harness: Harness, rows: Rows) -> None:
    case = case_of(harness, "mixed", dtype="float32")
    step = Step(harness.rig(case), case)
    step.fill()
    step.store()
    step.attend(rows=rows).check(Margins())


def test_one_plan_for_a_long_step_and_then_a_short_one(harness: Harness) -> None:
    long, short = (harness.case(rows_of(*rows), leading=2, dtype="float32") for rows in ([(90, 1)] * 2, [(2, 1)] * 2))
    rig = harness.rig(long, short)
    steps = [Step(rig, case) for case in (long, short)]
    steps[1].plan = steps[0].plan
    for step in (*steps, steps[0]):
        step.run().check(Margins())


SHARING: dict[str, tuple[tuple[int, ...], ...]] = {
    "one_group": ((41, 1), (37, 1, 0, 2), (60, 1, 0, 2), (5, 1), (33, 1, 0, 2)),
    "two_groups": ((20, 1), (50, 1), (17, 1, 0, 1), (49, 1, 1, 3), (3, 1)),
    "with_prompts": ((33, 1), (40, 1, 0, 2), (9, 1), (34, 1, 0, 2), (20, 6, 0, 1)),
}


@pytest.mark.parametrize("changes", [{}, {"soft_cap": 8.0, "sinks": True, "ratio": 4}, {"ratio": 16, "padding": 2}])
@pytest.mark.parametrize("shape", list(SHARING))
def test_rows_that_share_pages(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, shape: str, changes: dict[str, Any]
) -> None:
    """Whatever they save."""
    monkeypatch.setattr(shared, "WORTH", 1)
    leading = sum(row[1] == 1 for row in SHARING[shape])
    case = harness.case(rows_of(*SHARING[shape]), leading=leading, kv_heads=2, page=16, dtype="float32", **changes)
    step = Step(harness.rig(case), case)
    step.run().check(Margins())
    skipping = int((skipped(step) > 0).sum())
    assert skipping == {"one_group": 4, "two_groups": 4, "with_prompts": 3}[shape]


@pytest.mark.parametrize(
    ("page", "changes"), [(1, {}), (7, {"kv_dtype": "float8_e4m3fn"}), (64, {}), (16, {"mla": LATENT})]
)
def test_shared_pages_of_any_size(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, page: int, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(shared, "WORTH", 1)
    pages = max(1, 40 // page)
    rows = [(pages * page + 3, 1), *((pages * page + own, 1, 0, pages) for own in (0, 9, 1))]
    case = harness.case(rows_of(*rows), leading=4, kv_heads=1, page=page, dtype="float16", **changes)
    step = Step(harness.rig(case), case)
    step.run().check(Margins())
    assert skipped(step).tolist() == [pages * page] * 4


@pytest.mark.parametrize(("kv_heads", "segments", "leading"), [(1, 4, 0), (4, 1, 5)])
def test_what_is_shared_joins_rows_that_are_cut_and_rows_that_are_not(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, kv_heads: int, segments: int, leading: int
) -> None:
    """Beside a row that shares nothing, and in steps of any rows, too. Sinks count once."""
    launches: list[Any] = []
    monkeypatch.setattr(backend, "attend_kernel", Recorder(backend.attend_kernel, launches))
    monkeypatch.setattr(shared, "WORTH", 1)
    rows = rows_of((41, 1), (37, 1, 0, 2), (60, 1, 0, 2), (90, 1), (33, 1, 0, 2))
    case = harness.case(rows, leading=leading, kv_heads=kv_heads, ratio=3, page=16, dtype="float32", sinks=True)
    step = Step(harness.rig(case), case)
    step.run().check(Margins())
    assert skipped(step).tolist() == [32, 32, 32, 0, 32]
    if harness.device.type == "cpu":
        assert launches[0][2]["SEGMENTS"] == segments


def skipped(step: Step) -> torch.Tensor:
    """Of each row of the step the tokens that it shares."""
    assert isinstance(step.plan, backend.TritonPlan) and step.plan.prefixes is not None
    return step.plan.prefixes.skip[: len(step.case.rows)]


def test_a_group_ends_with_its_step(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """One plan: rows that share, then as many that do not, then others that share less."""
    monkeypatch.setattr(shared, "WORTH", 1)
    prompts = ((5, 2), (4, 3), (0, 2), (0, 1), (9, 2))
    rows = (SHARING["one_group"], ((41, 1), (37, 1), (60, 1), (5, 1), (33, 1)), prompts, SHARING["two_groups"])
    cases = [
        harness.case(rows_of(*one), leading=0 if one == prompts else 5, kv_heads=1, page=16, dtype="float32")
        for one in rows
    ]
    rig = harness.rig(*cases)
    steps = [Step(rig, case) for case in cases]
    for step in (*steps, steps[0]):
        step.plan = steps[0].plan
        step.run().check(Margins())


def test_addresses_beyond_31_bits(harness: Harness) -> None:
    """Pages so far up that the elements before them are more than 2 ** 31."""
    if harness.device.type == "cpu":
        pytest.skip("the pool has more than 4 GiB; on a GPU only")
    case = case_of(harness, "mixed", head_dim=128, first_page=(1 << 31) // (16 * 2 * 128) + 5, page=16)
    run(harness, case)


def test_it_keeps_the_contract(harness: Harness) -> None:
    if harness.device.type == "cpu":
        pytest.skip("the whole suite takes the interpreter too long; on a GPU only")
    done = subprocess.run(
        [sys.executable, "-m", "srtkit", "conformance", "run", "attention:triton", "--device", "cuda", "--level", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


# --- what it declares and refuses


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"causal": False, "window": 8}, "window without a causal mask"),
        ({"kv_dtype": "float16"}, "keeps KV in the model's float32"),
        ({"v_head_dim": 12}, "values of size 12"),
        ({"head_dim": 320}, "keys of size 320"),
        ({"kv_heads": 3}, "3 KV heads"),
        ({"mla": LATENT}, "does not read the layout nhd/1"),
    ],
)
def test_specs_that_it_does_not_cover_are_refused_at_build(
    harness: Harness, change: dict[str, Any], reason: str
) -> None:
    build = harness.rig(case_of(harness, dtype="float32", ratio=1)).build
    group = dataclasses.replace(build.group, spec=dataclasses.replace(build.group.spec, **change))
    with pytest.raises(Unsupported, match=reason):
        plugin.build(dataclasses.replace(build, group=group))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kv_heads": 2, "q_heads": 32}, "absorbed form"),
        ({"v_head_dim": 80}, "absorbed form"),
        ({"mla": MlaDims(60, 20, 32, 32), "v_head_dim": 60}, "latents of size 60"),
    ],
)
def test_latent_layers_that_it_does_not_cover_are_refused_at_build(
    harness: Harness, change: dict[str, Any], reason: str
) -> None:
    build = harness.rig(case_of(harness, dtype="float32", ratio=16, mla=LATENT)).build
    group = dataclasses.replace(build.group, spec=dataclasses.replace(build.group.spec, **change))
    with pytest.raises(Unsupported, match=reason):
        plugin.build(dataclasses.replace(build, group=group))


def test_on_a_cpu_it_needs_the_interpreter(harness: Harness) -> None:
    if harness.device.type != "cpu":
        pytest.skip("there is a GPU here")
    from srtkit_plugin_attention_triton.backend import TritonAttention

    build = harness.rig(case_of(harness, dtype="float32")).build
    with pytest.raises(DeviceAbsent, match="interpreter only"):
        TritonAttention(build, interpreted=False)


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(DeviceAbsent, match="pip install triton"):
        plugin.build(None)  # type: ignore[arg-type]


def test_dtypes_by_device() -> None:
    dtypes = frozenset({"float32", "bfloat16", "float16"})
    offered = {
        name: plugin.capabilities(DeviceFacts(name, "test", "test", dtypes=dtypes)).dtypes
        for name in ("cuda", "rocm", "cpu", "other")
    }
    assert offered == {"cuda": dtypes, "rocm": dtypes, "cpu": {"float32", "float16"}, "other": frozenset()}


# --- tiles


def test_every_shape_has_a_tile_with_room_for_its_heads() -> None:
    kinds: tuple[Kind, ...] = ("few", "decode", "extend")
    shapes = itertools.product(
        *(("sm80", "sm90", "sm120", "gfx942"), kinds, (16, 128, 256, 512, 1152, 2304), (1, 3, 8, 64), (1, 5, 4096)),
        (False, True),
    )
    for architecture, kind, key_bytes, group, queries, fp8 in shapes:
        assert tile_for(architecture, kind, key_bytes, group, queries, fp8=fp8).block_m >= max(16, group)


def test_query_heads_of_a_program() -> None:
    """All of a KV head, or an equal part that a program has room for."""
    spec = AttentionSpec(16, 4, 64, 64, 1.0, "float32", "float32")
    groups = {ratio: group_of(dataclasses.replace(spec, q_heads=4 * ratio)) for ratio in (1, 4, 64, 80, 128)}
    assert groups == {1: 1, 4: 4, 64: 64, 80: 40, 128: 64}


def test_segments_fill_the_device_and_no_more() -> None:
    tile = Tile(16, 64, 4, 2, waves=4)
    assert segments(8, tile, 8192, 132) == 128  # one row of eight KV heads
    assert segments(64 * 8, tile, 8192, 132) == 2
    assert segments(1024 * 8, tile, 8192, 132) == 1
    assert segments(1, tile, 100, 132) == 2  # not more than there are tiles
    assert segments(1, tile, 1 << 20, 132) == MAX_SEGMENTS


def test_parts_shrink_to_the_room_there_is() -> None:
    assert [fitting(8, 4, room) for room in (32, 31, 16, 4, 3)] == [8, 4, 4, 1, 1]


def test_the_descriptor_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys, srtkit_plugin_attention_triton as p; p.srtkit_attention(); "
        "sys.exit(bool({'torch', 'triton'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_device_is_what_the_tests_believe(harness: Harness) -> None:
    assert harness.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
