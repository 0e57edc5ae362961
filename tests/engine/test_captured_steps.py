"""Captured decode steps through the whole engine, with an attention that records and a device that checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import srtkit_plugin_attention_torch as attention_torch
from srtkit import Engine
from srtkit.spec.attention import AttentionCapabilities
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.kits.server.whole_tables import WholeTables
from srtkit_plugin_graph_full.runner import FullGraphRunner
from tests.live_server import tiny

PROMPTS = [list(range(5, 40)), [1, 2, 3], [7] * 20]


def recordable(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention_torch.capabilities

    def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
        return replace(whole(facts), capture="one_token", features=frozenset())

    monkeypatch.setattr(attention_torch, "capabilities", capabilities)
    monkeypatch.setattr(attention_torch, "build", WholeTables)


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
