"""Which steps each graph runner of the list is asked to capture, and what is said when it is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import srtkit_plugin_attention_torch as attention_torch
import srtkit_plugin_attention_triton as attention_triton
from srtkit.config.prepare import Run, prepare
from srtkit.config.resolve import _runners
from srtkit.config.settings import load_settings
from srtkit.spec.attention import AttentionCapabilities
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.step_plan import StepKey
from tests.live_server import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_model(tmp_path_factory.mktemp("model"))


def run_of(model: Path, runners: str, *more: str) -> Run:
    file = model / "served.toml"
    file.write_text(f'[model]\nsource = "{model}"\n[platform]\nuse = "fakedev"\n[attention]\nuse = "torch"\n')
    return prepare(load_settings(file, [f"graph_runner.use={runners}", "scheduler.max_running=4", *more]))


def capturing(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    whole = attention_torch.capabilities

    def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
        return replace(whole(facts), capture=level)

    monkeypatch.setattr(attention_torch, "capabilities", capabilities)


def test_a_runner_that_captures_nothing_is_noted(model: Path) -> None:
    notes = run_of(model, '["cuda-full", "eager"]').config.notes
    assert "graph_runner:cuda-full captures nothing: attention:torch lets no step be recorded" in notes
    assert not run_of(model, '["eager"]').config.notes


def test_mixed_steps_are_captured_where_attention_records_any(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for level, mixed in (("uniform", False), ("any", True)):
        capturing(monkeypatch, level)
        keys = run_of(model, '["cuda-full", "eager"]').config.runners[0].keys
        assert [key.rows for key in keys if key.q_len == 1] == [1, 2, 4]
        assert {key.rows for key in keys if not key.q_len} == ({5} if mixed else set()), "a row for padding"


def test_a_runner_that_cuts_at_attention_captures_every_step(model: Path) -> None:
    config = run_of(model, '["cuda-full", "cuda-piecewise", "eager"]').config
    full, piecewise, _ = config.runners
    assert not full.keys and not full.cuts and piecewise.cuts
    assert {key.q_len for key in piecewise.keys} == {0, 1}
    assert config.fit(StepKey(3, 100)) == StepKey(5, 128)
    assert config.fit(StepKey(4, 2048)) == StepKey(5, 2048)
    assert len(config.notes) == 1, "of the one that has nothing left"


def test_prompts_of_a_backend_that_records_none_are_no_captured_steps(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_triton, "capabilities", attention_torch.capabilities)
    capturing(monkeypatch, "any")
    run = run_of(model, '["cuda-full", "eager"]', 'attention.prefill="triton"')
    assert run.config.runners[0].keys
    assert all(key.q_len for key in run.config.runners[0].keys)


def test_captured_steps_are_part_of_the_memory_plan(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_of(model, '["cuda-full", "eager"]').config
    capturing(monkeypatch, "one_token")
    after = run_of(model, '["cuda-full", "eager"]').config
    taken = after.memory.workspace - before.memory.workspace
    assert taken >= 3 * 4 * max(key.rows for key in after.runners[0].keys) * after.model.vocab_size
    assert before.runners[0].keys == ()


def test_the_first_of_the_list_captures_a_step(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capturing(monkeypatch, "one_token")
    run = run_of(model, '["cuda-full", "eager"]')
    full, eager = run.loaded.all("graph_runner")
    twice = replace(run.loaded, plugins=(full, full, eager))
    first, second, last = _runners(twice, run.config.limits, run.facts, "one_token")
    assert first.keys and second.keys == last.keys == ()


def test_a_list_that_ends_with_a_capturing_runner_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capturing(monkeypatch, "one_token")
    with pytest.raises(Unsupported, match="graph_runner:cuda-full is the last, and runs only what it has captured"):
        run_of(model, '["eager", "cuda-full"]')
