"""The suite over aiter's double, and what is this backend's own: which kernel takes which rows, and with what."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import srtkit_plugin_attention_aiter as plugin
from plugins.attention_aiter.tests.double import Double
from srtkit.spec.attention import AttentionSpec, LayerHandle, MlaDims
from srtkit.spec.errors import EngineError, SrtError, Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.kv import negotiate
from srtkit_conformance.checks.attention.capture import Recorded
from srtkit_conformance.kits.attention.case import Case, rows_of
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step
from srtkit_conformance.kits.here import checks_of, wrong
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_conformance.target import Target
from srtkit_plugin_attention_aiter.table import Routes, routes

MI300 = pytest.mark.parametrize("double", ["gfx942 0.1.7"], indirect=True)
MI355 = pytest.mark.parametrize("double", ["gfx950 newer"], indirect=True)
DECODE = {"rows": ((200, 1), (5, 1), (0, 1)), "leading": 3}
MIXED = {"rows": ((200, 1), (5, 1), (40, 9), (0, 17)), "leading": 2}
DRAFTS = {"rows": ((70, 4), (17, 4)), "leading": 2}
TREE = {"tree": True}
LATENT = {"mla": MlaDims(512, 64, 128, 128), "ratio": 3}


def case_of(harness: Harness, rows: Sequence[tuple[int, int]], **changes: Any) -> Case:
    return harness.case(rows_of(*rows), **changes)


def run(harness: Harness, double: Double, **changes: Any) -> list[tuple[str, dict[str, Any]]]:
    """One step against the gates; what was called."""
    case = case_of(harness, **changes)
    step = Step(harness.rig(case), case)
    del double.log[:]
    step.run().check(Margins())
    return list(double.log)


def replay(harness: Harness, double: Double, *cases: dict[str, Any]) -> None:
    """The first step is recorded, then its calls are repeated with the content of every one."""
    made = [case_of(harness, **one) for one in cases]
    rig, margins = harness.rig(*made), Margins()
    recorded = Recorded(rig, made[0], graph=False)
    for step in [Step(rig, one, salt="other") for one in made]:
        recorded.run(step, margins)


# --- the contract


@pytest.mark.full
@pytest.mark.parametrize("group", ["refusals", "features", "parts", "layout", "numerics", "steps", "memory", "capture"])
def test_it_keeps_the_contract(target: Target, group: str) -> None:
    assert wrong(target, checks_of("attention", (0, 1), [group])) == []


# One group over both is for `check`.
LEVEL_2 = [
    pytest.param(group, rules, marks=() if group == "numerics" else pytest.mark.full)
    for group in ("numerics", "features", "steps", "parts")
    for rules in ("gfx942 0.1.7", "gfx950 newer")
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("group", "double"), LEVEL_2, indirect=["double"])
def test_it_keeps_the_contract_at_level_2(target: Target, group: str) -> None:
    assert wrong(target, checks_of("attention", [2], [group])) == []


# --- which kernel takes which rows

PLAIN = AttentionSpec(8, 2, 128, 128, 0.1, "bfloat16", "bfloat16")
ABSORBED = dataclasses.replace(PLAIN, q_heads=16, kv_heads=1, head_dim=576, v_head_dim=512, mla=LATENT["mla"])


@pytest.mark.parametrize(
    ("spec", "change", "expected"),
    [
        (PLAIN, {}, Routes("decode", "unified", "extend", "prefill")),
        (PLAIN, {"soft_cap": 30.0}, Routes("decode", "unified", "extend", "prefill")),
        (PLAIN, {"window": 8}, Routes("unified", "unified", "drafts", "unified")),
        (PLAIN, {"sinks": True}, Routes("unified", "unified", "drafts", "unified")),
        (PLAIN, {"head_dim": 80, "v_head_dim": 80}, Routes("unified", "unified", "extend", "prefill")),
        (PLAIN, {"head_dim": 256, "v_head_dim": 256}, Routes("unified", "unified", "extend", "unified")),
        (PLAIN, {"head_dim": 512, "v_head_dim": 512}, Routes("unified", "unified", "drafts", "unified")),
        (PLAIN, {"q_heads": 34}, Routes("unified", "unified", "extend", "prefill")),
        (PLAIN, {"kv_dtype": "float8_e4m3fn"}, Routes("decode", "unified", "drafts", "unified")),
        (ABSORBED, {}, Routes("mla", "mla", "extend", "extend")),
        (ABSORBED, {"q_heads": 128}, Routes("mla", "extend", "extend", "extend")),
        (ABSORBED, {"dtype": "float16"}, Routes("extend", "extend", "extend", "extend")),
    ],
    ids=str,
)
def test_kernels_are_chosen_by_the_table(spec: AttentionSpec, change: dict[str, Any], expected: Routes) -> None:
    assert routes(dataclasses.replace(spec, **change)) == expected


@pytest.mark.parametrize(
    ("changes", "called"),
    [
        (MIXED, ["decode", "prefill"]),
        (MIXED | {"window": 24, "soft_cap": 5.0}, ["unified", "unified"]),
        (MIXED | {"sinks": True, "page": 64}, ["unified", "unified"]),
        (DRAFTS, ["unified"]),
        (DRAFTS | {"tree": True}, ["extend"]),
        (DRAFTS | {"tree": True, "window": 6, "sinks": True}, ["unified"]),
        (DECODE | LATENT, ["plan_work", "mla"]),
        (DRAFTS | LATENT, ["plan_work", "mla"]),
        (DRAFTS | LATENT | {"tree": True}, ["extend"]),
        (MIXED | LATENT | {"dtype": "float16"}, ["extend", "extend"]),
    ],
    ids=str,
)
def test_each_call_is_right_by_the_gates(harness: Harness, double: Double, changes: Any, called: list[str]) -> None:
    assert [name for name, _ in run(harness, double, **changes)] == called


# --- the guards


@pytest.mark.parametrize(("window", "expected"), [(24, (23, 0)), (1, (0, 0)), (0, (-1, -1))])
def test_a_window_is_told_as_the_keys_before_a_querys_own(
    harness: Harness, double: Double, window: int, expected: tuple[int, int]
) -> None:
    ((_, given),) = run(harness, double, **DECODE, window=window, sinks=True)
    assert given["window_size"] == expected


def test_lists_end_with_a_tail_of_valid_entries(harness: Harness, double: Double) -> None:
    (_, decode), (_, prefill) = run(harness, double, **MIXED)
    for given in (decode, prefill):
        end = int(given["kv_indptr"][-1])
        assert given["kv_page_indices"][end : end + 256].tolist() == [0] * 256


@MI300
def test_planes_above_2_gib_go_to_the_kernel_with_offsets_of_64_bits(
    harness: Harness, double: Double, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("srtkit_plugin_attention_aiter.mha.PREFILL_BYTES", 4096)
    calls = run(harness, double, **MIXED)
    assert [name for name, _ in calls] == ["decode", "unified"]
    assert "prompts go to unified_attention" in caplog.text
    assert calls[1][1]["seqused_k"].dtype == torch.int64


@MI300
@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_2_gib_are_2_gib(double: Double, more: int, fits: bool) -> None:
    """Of a plane that has no memory."""
    from srtkit_plugin_attention_aiter.mha import MhaAttention

    plane = torch.empty((2 << 30) + more, dtype=torch.uint8, device="meta")
    assert MhaAttention._fits(SimpleNamespace(_told=False), plane) is fits  # type: ignore[arg-type]


@MI300
def test_more_drafts_than_the_extend_kernel_masks_are_refused(harness: Harness) -> None:
    assert plugin.capabilities(harness.target.facts).max_q_len_decode == 32
    case = case_of(harness, ((40, 33), (17, 33)), leading=2, tree=True)
    step = Step(harness.rig(case), case)
    with pytest.raises(Unsupported, match="at most 32 queries in a leading row, not 33"):
        step.fill()


@pytest.mark.parametrize(("page", "block", "entries"), [(1, 1, 206), (16, 16, 14), (64, 16, 14)])
def test_decode_sees_pages_in_blocks_of_at_most_16(
    harness: Harness, double: Double, page: int, block: int, entries: int
) -> None:
    ((_, given),) = run(harness, double, rows=((200, 1), (4, 1)), leading=2, page=page)
    assert (given["block_size"], int(given["kv_indptr"][-1])) == (block, entries)


@MI300
def test_pages_of_one_token_get_tiles_of_more(harness: Harness, double: Double) -> None:
    """By a window as long as the longest row and a bound of two queries."""
    ((_, given),) = run(harness, double, rows=((600, 1), (3, 1)), leading=2, page=1, sinks=True)
    assert given["max_seqlen_q"] == 2
    assert given["window_size"] == (601, 0)


@MI300
def test_the_room_for_partial_results_is_for_the_largest_step(harness: Harness, double: Double) -> None:
    ((_, given),) = run(harness, double, rows=((700, 1), (3, 1)), leading=2, ratio=2)
    assert given["max_num_partitions"] == 3
    assert len(given["workspace_buffer"]) == 2 * 4 * 3 * (64 * 2 + 4 + 4)


@MI300
def test_drafts_with_a_window_have_a_table_as_wide_as_it(harness: Harness, double: Double) -> None:
    """A row of it for each draft, in every layer: the whole context would be a gigabyte of long rows."""
    ((_, given),) = run(harness, double, rows=((600, 4), (17, 4)), leading=2, tree=True, window=6)
    assert given["block_table"].shape == (8, 6 + 64)
    assert given["max_seqlen_k"] == 6


@MI300
def test_latent_heads_are_filled_up_and_the_work_is_that_of_the_filled(harness: Harness, double: Double) -> None:
    for ratio, heads in ((3, 16), (16, 16), (40, 48)):
        (_, work), (_, given) = run(harness, double, rows=((40, 1), (3, 1)), leading=2, **LATENT | {"ratio": ratio})
        assert work["num_heads_per_head_k"] == given["q"].shape[1] == given["o"].shape[1] == heads


@MI300
def test_longer_queries_of_latents_go_to_the_other_kernel(harness: Harness, double: Double) -> None:
    assert [name for name, _ in run(harness, double, rows=((40, 5), (3, 5)), leading=2, **LATENT)] == ["extend"]
    changes = LATENT | {"ratio": 32}
    assert [name for name, _ in run(harness, double, rows=((9, 2), (3, 2)), leading=2, **changes)] == ["extend"]


def test_pages_apart_are_refused(harness: Harness) -> None:
    case = case_of(harness, **MIXED, adjacent=False)
    step = Step(harness.rig(case), case)
    step.fill()
    step.store()
    with pytest.raises(EngineError, match="not adjacent"):
        step.attend()


@pytest.mark.full
def test_what_the_host_gives_to_a_recorded_call_is_the_same_for_all_lengths(harness: Harness, double: Double) -> None:
    """So that it may be replayed: numbers are equal and tensors stay where they are, but those of the layer."""
    own = {"q", "query", "out", "o", "q_extend", "k_extend", "v_extend", "o_extend"}
    for changes in ({}, {"window": 24}, LATENT, TREE, TREE | {"window": 6}, TREE | LATENT):
        n = 4 if "tree" in changes else 1
        cases = [case_of(harness, rows, leading=2, **changes) for rows in (((200, n), (30, n)), ((3, n), (0, n)))]
        rig = harness.rig(*cases)
        recorded = Recorded(rig, cases[0], graph=False)
        seen = []
        for step in [Step(rig, case, salt="other") for case in cases]:
            del double.log[:]
            recorded.run(step, Margins())
            _, given = double.log[-1]
            seen.append(
                {k: v.data_ptr() if isinstance(v, torch.Tensor) else v for k, v in given.items() if k not in own}
            )
        assert seen[0] == seen[1]


@pytest.mark.full
def test_replays_follow_lengths_and_trees(harness: Harness, double: Double) -> None:
    longest, shorter = ((90, 1), (30, 1), (64, 1)), ((3, 1), (80, 1), (0, 1))
    for changes in ({}, {"window": 24}, {"window": 24, "page": 1}, LATENT):
        replay(harness, double, *({"rows": rows, "leading": 3, **changes} for rows in (longest, shorter)))
    for changes in ({}, {"window": 6}, LATENT):
        replay(harness, double, *({"rows": ((n, 4), (9, 4)), "leading": 2, "tree": True, **changes} for n in (60, 2)))


@pytest.mark.parametrize(
    "changes", [MIXED, DRAFTS | TREE, DRAFTS | TREE | {"window": 6}, DRAFTS | LATENT | TREE], ids=str
)
def test_where_keys_stand_is_looked_up_once_a_step(
    harness: Harness, double: Double, monkeypatch: pytest.MonkeyPatch, changes: Any
) -> None:
    """In fill, for all layers."""
    from srtkit_plugin_attention_aiter import indices

    case = case_of(harness, **changes)
    step = Step(harness.rig(case), case)
    step.fill()
    for kernel in ("list_kernel", "table_kernel", "drafts_kernel", "mask_kernel"):
        monkeypatch.setattr(indices, kernel, None)
    step.store()
    step.attend().check(Margins())


@pytest.mark.parametrize(
    "changes", [{}, {"tree": True}, {"tree": True, "window": 6}, LATENT, LATENT | {"tree": True}], ids=str
)
def test_a_padding_row_of_several_queries_has_a_key_for_each(harness: Harness, double: Double, changes: Any) -> None:
    """It is said to have one, in every recorded step of drafts; rows beside it are not touched."""
    case = case_of(harness, ((0, 4), (40, 4), (0, 4)), leading=3, **changes)
    step = Step(harness.rig(case), case)
    for row in (0, 2):
        step.batch.context[row] = step.batch.host_context[row] = 1
    step.run().check(Margins())


@MI300
def test_after_advance_latents_are_read_to_the_new_length(harness: Harness, double: Double) -> None:
    case = case_of(harness, **DECODE, **LATENT)
    step = Step(harness.rig(case), case)
    context = step.batch.context.clone()
    step.batch.context.fill_(1)
    step.fill()
    step.batch.context.copy_(context)
    advance = step.rig.backend.parts().advance
    assert advance is not None
    advance.advance(step.plan)
    step.store()
    step.attend().check(Margins())


@pytest.mark.parametrize(
    ("changes", "called"),
    [
        ({}, ["decode", "unified", "prefill"]),
        ({"sinks": True, "page": 64}, ["unified", "unified", "unified"]),
        ({"page": 1}, ["decode", "unified", "prefill"]),
        (LATENT, ["work_shapes", "plan_work", "mla", "plan_work", "mla", "extend"]),
    ],
    ids=str,
)
def test_what_must_be_compiled_is_called_at_start(
    harness: Harness, double: Double, changes: Any, called: list[str]
) -> None:
    """As the first step calls it: with the numbers that kernels are compiled by."""
    from srtkit_plugin_attention_aiter.warmup import warm_up

    rig = harness.rig(case_of(harness, ((600, 1), (0, 9)), leading=1, **changes))
    warm_up(rig.backend, rig.build)
    warmed = list(double.log)
    assert [name for name, _ in warmed] == called
    step = Step(rig, rig_case := case_of(harness, ((600, 1), (0, 9)), leading=1, **changes))
    assert rig_case.spec == rig.spec
    step.run().check(Margins())
    compiled_by = {"block_size", "max_num_partitions", "kv_cache_dtype", "softcap", "window_size", "causal"}
    first = dict(warmed[::-1])
    for name, given in double.log[len(warmed) :]:
        for one in compiled_by & given.keys():
            assert first[name][one] == given[one], f"{name} was warmed up with another {one}"


@MI300
@pytest.mark.parametrize(("device", "warmed"), [("cpu", []), ("cuda", ["backend"])])
def test_on_a_gpu_it_has_attended_once_when_it_is_built(
    double: Double, monkeypatch: pytest.MonkeyPatch, device: str, warmed: list[str]
) -> None:
    from srtkit_plugin_attention_aiter import warmup

    calls: list[Any] = []
    monkeypatch.setattr(warmup, "warm_up", lambda backend, build: calls.append(backend))
    build: Any = SimpleNamespace(device_index=0, platform=SimpleNamespace(device=lambda index: torch.device(device)))
    made: Any = warmup.built("part", build, lambda *_, **__: "", lambda *_: "backend")  # type: ignore[arg-type,return-value]
    assert (made, calls) == ("backend", warmed)


# --- what is refused


@pytest.mark.parametrize(
    "facts",
    [
        DeviceFacts("rocm", "MI250", "gfx90a"),
        DeviceFacts("rocm", "MI450", "gfx1250"),
        DeviceFacts("cuda", "H100", "sm90"),
        DeviceFacts("cpu", "a CPU", "x86_64"),
    ],
    ids=lambda facts: facts.name,
)
def test_other_devices_are_refused_with_the_reason(facts: DeviceFacts) -> None:
    with pytest.raises(Unsupported, match=f"AMD's gfx942 and gfx950, and {facts.name} is {facts.platform}"):
        plugin.capabilities(facts)


@MI300
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"head_dim": 512, "v_head_dim": 512}, r"head size 512 only in versions after 0\.1\.7"),
        ({"head_dim": 320, "v_head_dim": 320}, "no kernel for head size 320"),
        ({"v_head_dim": 32}, "keys of size 64 with values of size 32"),
        ({"kv_dtype": "float8_e4m3fn"}, "does not store KV in float8_e4m3fn"),
        ({"dtype": "float32", "kv_dtype": "float32"}, "does not compute in float32"),
        ({"causal": False}, "non_causal"),
        ({"mla": LATENT["mla"]}, "absorbed form"),
        ({"mla": MlaDims(256, 32, 64, 64)}, "latents of size 256"),
    ],
    ids=str,
)
def test_specs_that_it_does_not_cover_are_refused_at_build(harness: Harness, change: Any, reason: str) -> None:
    build = harness.rig(harness.case(rows_of((20, 1)))).build
    group = dataclasses.replace(build.group, spec=dataclasses.replace(build.group.spec, **change))
    with pytest.raises(Unsupported, match=reason):
        plugin.build(dataclasses.replace(build, group=group))


@MI355
def test_large_heads_run_with_a_newer_version(harness: Harness, double: Double) -> None:
    assert [name for name, _ in run(harness, double, **MIXED, head_dim=512, kv_heads=1)] == ["unified", "unified"]


def test_on_another_gpu_it_says_so(harness: Harness, double: Double) -> None:
    build = harness.rig(harness.case(rows_of((20, 1)))).build
    double.architecture = "gfx90a"
    with pytest.raises(SrtError, match="this GPU is gfx90a"):
        plugin.build(build)


def test_layouts_are_those_of_the_architecture() -> None:
    for architecture, dtype in (("gfx942", "float8_e4m3fnuz"), ("gfx950", "float8_e4m3fn")):
        facts = DeviceFacts("rocm", "assumed", architecture)
        for other in ("float8_e4m3fnuz", "float8_e4m3fn"):
            found = plugin.kv_layouts(dataclasses.replace(PLAIN, kv_dtype=other), 16, facts)
            assert [plane.dtype for layout in found for plane in layout.planes] == [dtype] * 2 * (other == dtype)
    (latent,) = plugin.kv_layouts(ABSORBED, 64, facts)
    assert [(plane.name, plane.shape) for plane in latent.planes] == [("latent_rope", (64, 576))]
    assert plugin.kv_layouts(dataclasses.replace(ABSORBED, kv_dtype="float8_e4m3fn"), 64, facts) == ()


def test_its_pages_are_those_of_other_backends_too() -> None:
    """So that one can have the prompts, or compare, over the same pages."""
    triton = pytest.importorskip("srtkit_plugin_attention_triton")
    facts = DeviceFacts("rocm", "assumed", "gfx942", dtypes=frozenset({"bfloat16"}))
    offers = [(name, one.kv_layouts(PLAIN, 16, facts)) for name, one in (("aiter", plugin), ("triton", triton))]
    assert negotiate(offers).name == negotiate(offers[::-1]).name == "nhd/1"


def test_the_mover_of_latents_moves_whole_entries(double: Double) -> None:
    from srtkit_plugin_attention_aiter.mla import LatentMover

    plane = torch.arange(3 * 16 * 576).view(3, 16, 576).to(torch.float32).to(torch.bfloat16)
    before = plane.flatten(0, 1).clone()
    source, target = (torch.tensor(slots, dtype=torch.int32) for slots in ([3, 40], [17, 5]))
    LatentMover().move_slots(LayerHandle(0, {"latent_rope": plane}), source, target)
    before[[17, 5]] = before[[3, 40]]
    assert torch.equal(plane.flatten(0, 1), before)
