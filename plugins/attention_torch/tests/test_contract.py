"""Each clause of the attention contract beyond the numeric matrix."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import srtkit_plugin_attention_torch as plugin
from srtkit.spec.attention import AttentionSpec, LayerHandle, MlaDims, PrefixGroups, Rows, check_spec
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts, Limits

if TYPE_CHECKING:
    from conftest import Run

    RunOf = Callable[..., Run]

FACTS = DeviceFacts("cpu", "test", "x86_64", dtypes=frozenset({"float32", "bfloat16"}))
SHARED_DECODE = [(1030, 1), (1040, 1, 0, 64), (1050, 1, 0, 64), (5, 1)]
SHARED_PROMPTS = [(1040, 20), (1024, 20, 0, 64), (1024, 20, 0, 64), (0, 20), (37, 20), (0, 20)]


def attend(step: Run, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of a step that is filled and stored."""
    spec = step.case.spec
    out = torch.zeros(step.tokens, spec.q_heads, spec.v_head_dim, dtype=step.q.dtype)
    lse = torch.zeros(step.tokens, spec.q_heads)
    step.backend.attend(step.plan, step.layer, step.q, out, lse=lse, **how)
    return out, lse


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("rows", [SHARED_DECODE, SHARED_PROMPTS], ids=["decode", "prompts"])
def test_a_shared_prefix_is_read_once(run: RunOf, rows: list[tuple[int, ...]], dtype: str) -> None:
    step = run(rows, dtype=dtype)
    step.run().check()
    first = step.plan.calls[Rows.ALL][0]  # type: ignore[attr-defined]
    assert first.stop - first.first == sum(row[1] for row in rows[:3])


def test_the_hint_of_prefix_groups_changes_the_cut_and_not_the_result(run: RunOf) -> None:
    step = run(SHARED_DECODE, leading=4)
    groups = PrefixGroups(np.array([0], np.int32), np.array([2], np.int32), np.array([64], np.int32))
    step.batch = dataclasses.replace(step.batch, groups=groups)
    step.run().check()
    first = step.plan.calls[Rows.ALL][0]  # type: ignore[attr-defined]
    assert (first.first, first.stop) == (0, 2)


def test_fresh_keys_are_only_a_hint(run: RunOf) -> None:
    for rows in ([(0, 40), (0, 9), (0, 9), (37, 20)], SHARED_PROMPTS):
        step = run(rows)
        step.run(fresh=step.new).check()
        hinted, hinted_lse = attend(step, fresh=step.new)
        plain, plain_lse = attend(step)
        assert torch.equal(hinted, plain)
        assert torch.equal(hinted_lse, plain_lse)


@pytest.mark.parametrize("fast", [True, False])
def test_leading_and_rest_together_are_all(run: RunOf, fast: bool) -> None:
    step = run([(1030, 1), (1030, 1, 0, 64), (0, 12), (40, 30)], leading=2, fast=fast)
    step.run().check()
    every, every_lse = attend(step)
    spec = step.case.spec
    out = torch.full((step.tokens, spec.q_heads, spec.v_head_dim), 7.0, dtype=step.q.dtype)
    lse = torch.full((step.tokens, spec.q_heads), 7.0)
    step.backend.attend(step.plan, step.layer, step.q, out, rows=Rows.LEADING, lse=lse)
    assert torch.equal(out[:2], every[:2])
    assert (out[2:] == 7).all()
    assert (lse[2:] == 7).all()
    out.fill_(7.0)
    step.backend.attend(step.plan, step.layer, step.q, out, rows=Rows.REST, lse=lse)
    assert (out[:2] == 7).all()
    assert torch.equal(out[2:], every[2:])
    assert torch.equal(lse, every_lse)


@pytest.mark.parametrize("fast", [True, False])
def test_tokens_before_the_window_are_not_read(run: RunOf, fast: bool) -> None:
    step = run([(90, 1), (70, 1), (50, 33)], window=24, page=1, fast=fast)
    for row, (stored, _) in enumerate([(90, 1), (70, 1), (50, 33)]):
        for plane in step.planes.values():
            plane[step.view.page_table[row, : stored - 23].long()] = torch.nan  # pages that may have been freed
    step.run().check()


def test_pages_in_a_row_but_for_two_in_the_middle(run: RunOf) -> None:
    step = run([(0, 96)], permuted=False)
    step.pages[0, [2, 3]] = step.pages[0, [3, 2]]
    step.view = step._view()
    step.attend(fresh=step.new)
    step.compare(*attend(step)).check()


def test_values_are_rounded_when_stored_narrower_or_wider(run: RunOf) -> None:
    for dtype, kv_dtype in (("float32", "bfloat16"), ("bfloat16", "float32")):
        run([(40, 1), (30, 1), (0, 20)], dtype=dtype, kv_dtype=kv_dtype).run().check()


def test_a_tree_after_a_plain_step(run: RunOf) -> None:
    plain, tree = run([(30, 9), (5, 9)], leading=2), run([(30, 9), (5, 9)], leading=2, tree=True, seed=2)
    tree.backend, tree.plan = plain.backend, plain.plan
    for step in (plain, tree, plain):
        step.run().check()


@pytest.mark.parametrize("window", [0, 6])
def test_trees_of_drafts(run: RunOf, window: int) -> None:
    rows = [(40, 37), (0, 37), (33, 37), (0, 5), (20, 1)]  # 37 drafts: two words of bits
    run(rows, tree=True, leading=3, window=window, dtype="float32").run().check()


@pytest.mark.parametrize("kv_dtype", ["", "float8_e4m3fn"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_latent_attention_absorbed(run: RunOf, dtype: str, kv_dtype: str) -> None:
    dims = MlaDims(rank=64, rope=16, nope=32, v_head_dim=32)
    step = run([(50, 1), (7, 1), (0, 9), (20, 5)], mla=dims, kv_heads=1, ratio=8, dtype=dtype, kv_dtype=kv_dtype)
    assert [plane.name for plane in step.layout.planes] == ["latent", "rope"]
    step.run().check()


def test_a_plan_holds_only_its_last_step(run: RunOf) -> None:
    large, small = run([(1030, 1)] + [(1030, 1, 0, 64)] * 4 + [(90, 30)]), run([(5, 1), (0, 2)], seed=3)
    small.backend, small.plan = large.backend, large.plan
    for step in (large, small, large, small):
        step.run().check()


def test_plans_alive_together_do_not_meet(run: RunOf) -> None:
    one, two = run([(1030, 1), (1030, 1, 0, 64)]), run([(30, 1), (0, 9)], seed=5)
    two.backend = one.backend
    two.plan = one.backend.new_plan(one.build.limits)
    one.run()
    two.run()
    for step in (one, two, one):
        out, lse = attend(step)
        step.compare(out, lse).check()


def test_two_layers_of_a_group_in_one_step(run: RunOf) -> None:
    one, two = run([(50, 1), (0, 9)]), run([(50, 1), (0, 9)], seed=9)
    one.run()
    two.backend, two.plan, two.pages, two.view = one.backend, one.plan, one.pages, one.view
    planes = {name: torch.full_like(plane, torch.nan) for name, plane in one.planes.items()}
    two.layer = LayerHandle(1, planes)
    two.layer = LayerHandle(1, planes)
    for name, stored in zip(("k", "v"), (two.keys, two.values), strict=True):
        for row, tokens in enumerate(stored):
            two._put(planes[name], row, torch.from_numpy(tokens).bfloat16(), 0, len(tokens))
    two.backend.store(two.plan, two.layer, *two.new)
    out, lse = attend(two, fresh=two.new)
    two.compare(out, lse).check()


def test_new_planes_under_an_old_layer_index_are_noticed(run: RunOf) -> None:
    step = run([(50, 1)])
    step.run()
    before, _ = attend(step)
    step.layer = LayerHandle(0, {name: plane.clone() for name, plane in step.planes.items()})
    for plane in step.planes.values():
        plane.fill_(torch.nan)
    after, _ = attend(step)
    assert torch.equal(before, after)


@pytest.mark.parametrize("fast", [True, False])
def test_a_prompt_in_chunks_is_the_prompt(run: RunOf, fast: bool) -> None:
    whole = run([(0, 70)], fast=fast)
    whole.run().check()
    out, _ = attend(whole)
    k, v = whole.new
    done = torch.empty_like(out)
    for start, stop in ((0, 16), (16, 17), (17, 50), (50, 70)):
        part = run([(start, stop - start)], fast=fast)
        part.q, part.new = whole.q[start:stop], (k[start:stop], v[start:stop])
        for name, tokens in zip(("k", "v"), whole.new, strict=True):
            part._put(part.planes[name], 0, tokens, 0, start)
        part.backend.fill(part.plan, part.batch, part.view)
        part.backend.store(part.plan, part.layer, *part.new)
        done[start:stop], _ = attend(part)
    assert (done.float() - out.float()).norm() / out.float().norm() < (4e-3 if fast else 1e-6)


@pytest.mark.parametrize("fast", [True, False])
def test_the_order_of_pages_changes_nothing(run: RunOf, fast: bool) -> None:
    rows = [(300, 1), (120, 1), (40, 20), (0, 9)]
    permuted, consecutive = (run(rows, permuted=permuted, fast=fast).run() for permuted in (True, False))
    assert torch.equal(permuted.out, consecutive.out)
    assert torch.equal(permuted.lse, consecutive.lse)


def test_many_fresh_rows_are_more_tokens_than_a_row_may_have(run: RunOf) -> None:
    step = run([(0, 20)] * 6, options={"workspace_kib": 16})
    step.run().check()  # without `fresh`, so that all are gathered


def test_q_may_be_a_slice_of_a_fused_projection(run: RunOf) -> None:
    for rows in ([(50, 1)], [(50, 1)] * 3, [(0, 20), (0, 20), (30, 25)], SHARED_PROMPTS):
        step = run(rows)
        step.run()
        plain, _ = attend(step, fresh=step.new)
        spec = step.case.spec
        fused = torch.cat((step.q, *step.new), 1)
        step.q = fused[:, : spec.q_heads]
        sliced, _ = attend(step, fresh=step.new)
        assert torch.equal(plain, sliced)


def test_runs_in_inference_mode(run: RunOf) -> None:
    step = run([(1030, 1), (1030, 1, 0, 64), (0, 9)])
    with torch.inference_mode():
        step.run(fresh=step.new).check()


def test_two_threads(run: RunOf) -> None:
    step = run([(1030, 1), (1030, 1, 0, 64), (0, 40), (0, 40), (200, 33)])
    alone, _ = step.attend()
    torch.set_num_threads(2)
    try:
        step.run().check()
        assert torch.equal(attend(step)[0], alone)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("causal", [True, False])
def test_attend_dense(run: RunOf, dtype: str, window: int, causal: bool) -> None:
    if window and not causal:
        return
    step = run([(0, 1)], dtype=dtype, window=window)
    dense = step.backend.parts().dense
    assert dense is not None
    spec = step.case.spec
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 3, 10, 14, 16], [0, 8, 9, 16, 18, 18]))
    q = torch.randn(16, spec.q_heads, 64).to(step.q.dtype)
    k, v = (torch.randn(18, spec.kv_heads, 64).to(step.q.dtype) for _ in range(2))
    out, lse = torch.empty_like(q), torch.empty(16, spec.q_heads)
    dense.attend_dense(q, k, v, (cu_q, cu_k), out, causal=causal, lse=lse)
    for row in range(5):
        q0, q1, k0, k1 = *cu_q[row : row + 2].tolist(), *cu_k[row : row + 2].tolist()
        for i in range(q0, q1):
            last = k1 - (q1 - 1 - i) if causal else k1  # bottom-right: the last query sees the last key
            first = max(k0, last - window) if window else k0
            for head in range(spec.q_heads):
                if last <= k0:
                    assert (out[i, head] == 0).all()
                    assert lse[i, head] == -torch.inf
                    continue
                scores = k[first:last, head // 3].double() @ q[i, head].double() * spec.scale
                gold = torch.softmax(scores, 0) @ v[first:last, head // 3].double()
                assert (out[i, head].double() - gold).norm() <= 4e-3 * gold.norm()
                assert abs(lse[i, head].item() - torch.logsumexp(scores, 0).item()) < 1e-5


@pytest.mark.parametrize("kv_dtype", ["", "float8_e4m3fn"])
def test_gather_reads_back_what_was_stored(run: RunOf, kv_dtype: str) -> None:
    step = run([(40, 1), (20, 9)], kv_dtype=kv_dtype, dtype="float32")
    step.run()
    dense = step.backend.parts().dense
    assert dense is not None
    for row, start, stop in ((0, 0, 41), (1, 3, 29), (1, 28, 29), (0, 5, 5)):
        k, v = torch.empty(stop - start, 3, 64), torch.empty(stop - start, 3, 64)
        dense.gather(step.plan, step.layer, row, start, stop, (k, v))
        assert np.allclose(k.numpy(), step.keys[row][start:stop], atol=1e-6)
        assert np.allclose(v.numpy(), step.values[row][start:stop], atol=1e-6)


def test_gather_of_a_latent_layer_gives_latent_and_rope(run: RunOf) -> None:
    step = run([(20, 1)], mla=MlaDims(32, 8, 16, 16), kv_heads=1, ratio=4)
    step.run()
    dense = step.backend.parts().dense
    assert dense is not None
    latent, rope = torch.empty(21, 32), torch.empty(21, 8)
    dense.gather(step.plan, step.layer, 0, 0, 21, (latent, rope))
    assert np.array_equal(torch.cat((latent, rope), 1).numpy(), step.keys[0][:, 0])


def test_merge_of_two_parts_is_the_whole(run: RunOf) -> None:
    step = run([(0, 1)], dtype="float32")
    dense = step.backend.parts().dense
    assert dense is not None
    q, k, v = torch.randn(5, 9, 64), torch.randn(30, 3, 64), torch.randn(30, 3, 64)
    parts = []
    for first, last in ((0, 12), (12, 30), (0, 30)):
        out, lse = torch.empty_like(q), torch.empty(5, 9)
        cu = (torch.tensor([0, 5]), torch.tensor([0, last - first]))
        dense.attend_dense(q, k[first:last], v[first:last], cu, out, causal=False, lse=lse)
        parts.append((out, lse))
    (out, lse), (out2, lse2), (whole, whole_lse) = parts
    dense.merge(out, lse, out2, lse2)
    assert torch.allclose(out, whole, atol=1e-6)
    assert torch.allclose(lse, whole_lse, atol=1e-6)
    nothing, never = torch.zeros_like(out), torch.full_like(lse, -torch.inf)
    dense.merge(out, lse, nothing, never)
    assert torch.allclose(out, whole, atol=1e-6)
    dense.merge(nothing, never, torch.zeros_like(out), never.clone())
    assert (nothing == 0).all()
    assert (never == -torch.inf).all()


@pytest.mark.parametrize("adjacent", [True, False])
@pytest.mark.parametrize("kv_dtype", ["", "float8_e4m3fn"])
def test_move_slots(run: RunOf, kv_dtype: str, adjacent: bool) -> None:
    step = run([(40, 1)], kv_dtype=kv_dtype, adjacent=adjacent)
    step.run()
    mover = step.backend.parts().mover
    assert mover is not None
    source = step.view.page_table[0, [0, 2]] * 16 + torch.tensor([3, 5], dtype=torch.int32)
    target = step.view.page_table[0, [1, 1]] * 16 + torch.tensor([0, 15], dtype=torch.int32)
    expected = {name: plane.clone() for name, plane in step.planes.items()}
    for plane in expected.values():
        for s, t in zip(source.tolist(), target.tolist(), strict=True):
            plane[t // 16, t % 16] = plane[s // 16, s % 16]
    mover.move_slots(step.layer, source, target)
    for name, plane in step.planes.items():
        old, new = (x.contiguous().view(torch.uint8) for x in (expected[name], plane))
        assert torch.equal(old, new)


def test_advance_takes_lengths_from_the_device(run: RunOf) -> None:
    shorter, longer = run([(15, 1), (20, 1)], leading=2), run([(16, 1), (21, 1)], leading=2)
    longer.backend, longer.plan = shorter.backend, shorter.plan
    advance = shorter.backend.parts().advance
    assert advance is not None
    shorter.batch = dataclasses.replace(longer.batch, host_context=shorter.context, context=shorter.batch.context)
    shorter.view = longer.view
    shorter.backend.fill(shorter.plan, shorter.batch, shorter.view)
    shorter.batch.context.copy_(longer.batch.context)
    advance.advance(longer.plan)
    longer.backend.store(longer.plan, longer.layer, *longer.new)
    longer.compare(*attend(longer)).check()


@pytest.mark.parametrize(("kv_dtype", "largest"), [("float8_e4m3fn", 448), ("float8_e4m3fnuz", 240)])
def test_fp8_saturates_where_the_scale_is_too_small(run: RunOf, kv_dtype: str, largest: int) -> None:
    step = run([(0, 4)], kv_dtype=kv_dtype, std=3000.0)
    out, _ = step.attend()
    assert torch.isfinite(out).all()
    dense = step.backend.parts().dense
    assert dense is not None
    k, v = torch.empty(4, 3, 64), torch.empty(4, 3, 64)
    dense.gather(step.plan, step.layer, 0, 0, 4, (k, v))
    assert step.layer.scales is not None
    assert v.abs().max() == largest * step.layer.scales["v"]


def test_batch_features_it_does_not_know_are_refused(run: RunOf) -> None:
    step = run([(10, 1)])
    step.batch = dataclasses.replace(step.batch, features=frozenset({"ranges"}))
    with pytest.raises(Unsupported, match="feature ranges"):
        step.backend.fill(step.plan, step.batch, step.view)


def test_inexact_lengths_are_refused(run: RunOf) -> None:
    step = run([(10, 1)])
    step.batch = dataclasses.replace(step.batch, exact=False)
    with pytest.raises(Unsupported, match="exact lengths"):
        step.backend.fill(step.plan, step.batch, step.view)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"causal": False, "window": 8}, "window without a causal mask"),
        ({"dtype": "float64"}, "does not compute in float64"),
        ({"kv_dtype": "int8"}, "does not store KV in int8"),
        ({"mla": MlaDims(64, 16, 32, 32), "kv_heads": 2}, "absorbed form"),
    ],
)
def test_specs_it_does_not_cover_are_refused_at_build(run: RunOf, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        run([(10, 1)], **change)


def test_a_foreign_layout_is_refused_at_build(run: RunOf) -> None:
    step = run([(10, 1)])
    layout = dataclasses.replace(step.layout, page_tokens=512)
    with pytest.raises(Unsupported, match="pages of 512"):
        plugin.build(dataclasses.replace(step.build, layout=layout))
    latent = run([(10, 1)], mla=MlaDims(32, 8, 16, 16), kv_heads=1)
    with pytest.raises(Unsupported, match="layout nhd/1"):
        plugin.build(dataclasses.replace(latent.build, layout=step.layout))


def test_declared_parts_agree_with_capabilities(run: RunOf) -> None:
    can = plugin.capabilities(FACTS)
    parts = run([(1, 1)]).backend.parts()
    assert bool(can.dense) == (parts.dense is not None)
    assert bool(can.move_slots) == (parts.mover is not None)
    assert bool(can.advance) == (parts.advance is not None)
    assert can.dtypes == {"float32", "bfloat16"}  # what the device lacks is not offered
    spec = AttentionSpec(9, 3, 64, 64, 0.125, "float16", "float16")
    assert "float16" in check_spec("attention:torch", spec, can)


def test_layouts() -> None:
    spec = AttentionSpec(9, 3, 64, 64, 0.125, "bfloat16", "float8_e4m3fn")
    (layout,) = plugin.kv_layouts(spec, 16, FACTS)
    assert (layout.name, layout.page_bytes, layout.over_read) == ("nhd/1", 2 * 16 * 3 * 64, 0)
    assert plugin.kv_layouts(spec, 512, FACTS) == ()
    assert plugin.capabilities(FACTS).page_sizes[0] == 16
    assert set(plugin.capabilities(FACTS).page_sizes) == set(range(1, 257))


def test_options_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValidationError):
        plugin.Options.model_validate({"fats": True})


def test_closing_frees_and_a_new_plan_works(run: RunOf) -> None:
    step = run([(10, 1)])
    step.run().check()
    step.plan.close()
    step.backend.close()
    step.plan = step.backend.new_plan(Limits(4, 64, 64, 16))
    step.run().check()


def test_the_descriptor_imports_no_torch() -> None:
    code = "import sys, srtkit_plugin_attention_torch as p; p.srtkit_attention(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
