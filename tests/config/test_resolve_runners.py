"""Which steps each graph runner of the list is asked to capture, and what is said when it is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import srtkit_plugin_attention_torch as attention_torch
from srtkit.config.prepare import Run, prepare
from srtkit.config.resolve import _runners
from srtkit.config.settings import load_settings
from srtkit.spec.attention import AttentionCapabilities
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts
from tests.live_server import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_model(tmp_path_factory.mktemp("model"))


def run_of(model: Path, runners: str) -> Run:
    file = model / "served.toml"
    file.write_text(f'[model]\nsource = "{model}"\n[platform]\nuse = "fakedev"\n[attention]\nuse = "torch"\n')
    return prepare(load_settings(file, [f"graph_runner.use={runners}", "scheduler.max_running=4"]))


def capturing(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    whole = attention_torch.capabilities

    def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
        return replace(whole(facts), capture=level)

    monkeypatch.setattr(attention_torch, "capabilities", capabilities)


def test_a_runner_that_captures_nothing_is_noted(model: Path) -> None:
    notes = run_of(model, '["full", "eager"]').config.notes
    assert "graph_runner:full captures nothing: attention:torch lets no step be recorded" in notes
    assert not run_of(model, '["eager"]').config.notes


def test_mixed_steps_are_not_asked_for(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capturing(monkeypatch, "any")
    keys = run_of(model, '["full", "eager"]').config.runners[0].keys
    assert [key.rows for key in keys if key.q_len == 1] == [1, 2, 4]
    assert all(key.q_len for key in keys)


def test_captured_steps_are_part_of_the_memory_plan(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_of(model, '["full", "eager"]').config
    capturing(monkeypatch, "one_token")
    after = run_of(model, '["full", "eager"]').config
    taken = after.memory.workspace - before.memory.workspace
    assert taken >= 4 * sum(key.rows for key in after.runners[0].keys) * after.model.vocab_size
    assert before.runners[0].keys == ()


def test_the_first_of_the_list_captures_a_step(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capturing(monkeypatch, "one_token")
    run = run_of(model, '["full", "eager"]')
    full, eager = run.loaded.all("graph_runner")
    twice = replace(run.loaded, plugins=(full, full, eager))
    first, second, last = _runners(twice, run.config.limits, "one_token")
    assert first.keys and second.keys == last.keys == ()


def test_a_list_that_ends_with_a_capturing_runner_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capturing(monkeypatch, "one_token")
    with pytest.raises(Unsupported, match="graph_runner:full is the last, and runs only what it has captured"):
        run_of(model, '["eager", "full"]')
