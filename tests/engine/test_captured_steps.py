"""Captured decode steps through the whole engine, with an attention that records and a device that checks.

The attention is plain tensor arithmetic over whole page tables, so that one recording serves every length.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import srtkit_plugin_attention_torch as attention_torch
from srtkit import Engine
from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionCapabilities,
    AttentionParts,
    AttentionPlan,
    Batch,
    GroupView,
    LayerHandle,
)
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit_plugin_graph_full.runner import FullGraphRunner
from tests.live_server import tiny

PROMPTS = [list(range(5, 40)), [1, 2, 3], [7] * 20]


class Plan(AttentionPlan):
    batch: Batch
    view: GroupView

    def close(self) -> None:
        pass


class Recordable(AttentionBackend):
    def __init__(self, build: AttentionBuild) -> None:
        self._spec = build.group.spec

    def new_plan(self, limits: Limits) -> Plan:
        return Plan()

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        assert isinstance(plan, Plan)
        plan.batch, plan.view = batch, view

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        assert isinstance(plan, Plan)
        for plane, new in ((layer.planes["k"], k), (layer.planes["v"], v)):
            plane.view(-1, *plane.shape[2:]).index_copy_(0, plan.view.slot_mapping.long(), new.contiguous())

    def attend(self, plan: AttentionPlan, layer: LayerHandle, q: Tensor, out: Tensor, **given: Any) -> None:
        assert isinstance(plan, Plan)
        batch, pages = plan.batch, plan.view.page_table.long()
        row = torch.bucketize(torch.arange(batch.tokens, device=q.device), batch.cu_q[1:], right=True)
        k, v = (layer.planes[name][pages].flatten(1, 2)[row] for name in ("k", "v"))
        times = self._spec.q_heads // self._spec.kv_heads
        k, v = k.repeat_interleave(times, 2), v.repeat_interleave(times, 2)
        scores = torch.einsum("thd,tnhd->thn", q, k) * self._spec.scale
        seen = torch.arange(k.shape[1], device=q.device)[None] <= batch.positions[:, None]
        weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        out.copy_(torch.einsum("thn,tnhd->thd", weights, v))

    def parts(self) -> AttentionParts:
        return AttentionParts()

    def close(self) -> None:
        pass


def recordable(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention_torch.capabilities

    def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
        return replace(whole(facts), capture="one_token", features=frozenset())

    monkeypatch.setattr(attention_torch, "capabilities", capabilities)
    monkeypatch.setattr(attention_torch, "build", Recordable)


@pytest.mark.parametrize("depth", [0, 1])
def test_captured_steps_give_the_tokens_of_eager_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    model = tiny.make_model(tmp_path / "model")
    file = tmp_path / "config.toml"
    tokens = []
    replayed: list[int] = []
    run = FullGraphRunner.run

    def counting(self: FullGraphRunner, program: Any, key: Any) -> Any:
        replayed.append(key.rows)
        return run(self, program, key)

    monkeypatch.setattr(FullGraphRunner, "run", counting)
    recordable(monkeypatch)
    for runners in ('["eager"]', '["full", "eager"]'):
        file.write_text(
            f'[model]\nsource = "{model}"\ndtype = "float32"\n[platform]\nuse = "fakedev"\n[attention]\nuse = "torch"\n'
            f"[graph_runner]\nuse = {runners}\n[scheduler]\nmax_running = 4\ndepth = {depth}\n[memory]\nkv_gib = 0.03\n"
        )
        with Engine.from_config(file) as engine:
            made = [engine.generate(PROMPTS[:n], temperature=0, max_tokens=9, ignore_eos=True) for n in (3, 1, 2)]
            tokens.append([[one.token_ids for one in each] for each in made])
        if runners == '["eager"]':
            assert not replayed
    assert tokens[0] == tokens[1]
    assert {1, 2, 4} <= set(replayed), "three rows run as four, one of them padding"
