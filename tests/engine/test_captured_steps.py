"""Captured steps through the whole engine, with an attention that records and a device that checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import srtkit_plugin_attention_torch as attention_torch
from srtkit import Engine
from srtkit.engine.runner import ModelRunner
from srtkit.spec.attention import AttentionCapabilities, AttentionPlan, LayerHandle
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.graph_runner import CaptureLevel, GraphRunner
from srtkit.spec.step_plan import StepKey
from srtkit_conformance.kits.server.whole_tables import WholeTables
from srtkit_conformance.mutants.attention.rotated import Rotating
from srtkit_plugin_graph_cuda.runner import CapturingRunner
from srtkit_plugin_graph_eager.runner import EagerRunner
from tests.live_server import tiny

PROMPTS = [list(range(5, 75)), [1, 2, 3], [7] * 20]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
CAPTURING: tuple[tuple[str, CaptureLevel], ...] = (
    ("cuda-full", "one_token"),
    ("cuda-breakable", "any"),
    ("cuda-piecewise", "never"),
)
"""Runners, and what the attention lets them record."""


def recordable(monkeypatch: pytest.MonkeyPatch, level: CaptureLevel) -> None:
    whole = attention_torch.capabilities

    def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
        return replace(whole(facts), capture=level, features=frozenset())

    monkeypatch.setattr(attention_torch, "capabilities", capabilities)
    if level != "never":
        monkeypatch.setattr(attention_torch, "build", WholeTables)


def tokens_of(folder: Path, runners: str, depth: int) -> list[Any]:
    """What a few batches give, the last of which comes while another sequence decodes."""
    model = folder / "model"
    if not model.exists():
        tiny.make_model(model)
    file = folder / "config.toml"
    file.write_text(
        f'[model]\nsource = "{model}"\ndtype = "float32"\nmax_context = 96\n[platform]\nuse = "fakedev"\n'
        f'[attention]\nuse = "torch"\n[graph_runner]\nuse = {runners}\n[memory]\nkv_gib = 0.03\n'
        f"[scheduler]\nmax_running = 4\nchunk_tokens = 48\ndepth = {depth}\n"
    )
    with Engine.from_config(file) as engine:
        made = [engine.generate(PROMPTS[:n], **GREEDY, max_tokens=6) for n in (3, 1, 2)]
        pieces = engine.stream([9, 9], **GREEDY, max_tokens=30)
        decoding = next(pieces).token_ids
        made.append(engine.generate(PROMPTS, **GREEDY, max_tokens=3))
        decoding += [token for piece in pieces for token in piece.token_ids]
        return [*([one.token_ids for one in each] for each in made), decoding]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captured")


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Any]:
    return tokens_of(folder, '["eager"]', 0)


@pytest.mark.parametrize("depth", [pytest.param(0, marks=pytest.mark.full), 1])
@pytest.mark.parametrize(("runner", "level"), CAPTURING)
def test_captured_steps_give_the_tokens_of_eager_ones(
    folder: Path, expected: list[Any], monkeypatch: pytest.MonkeyPatch, runner: str, level: CaptureLevel, depth: int
) -> None:
    """Chunks of 48 tokens: prompts come in parts, beside decode steps of others."""
    ran: dict[type[GraphRunner], list[StepKey]] = {CapturingRunner: [], EagerRunner: []}

    def counted(kind: type[GraphRunner]) -> Any:
        run = kind.run

        def counting(self: GraphRunner, program: Any, key: StepKey) -> Any:
            ran[kind].append(key)
            return run(self, program, key)

        return counting

    for kind in ran:
        monkeypatch.setattr(kind, "run", counted(kind))
    runners: list[ModelRunner] = []
    warm_up = ModelRunner.warm_up

    def warming(self: ModelRunner, tokens: int, *, prompt: bool) -> None:
        warm_up(self, tokens, prompt=prompt)
        runners[:] = [self]
        eager_before[:] = [len(ran[EagerRunner])]

    eager_before: list[int] = []
    monkeypatch.setattr(ModelRunner, "warm_up", warming)
    recordable(monkeypatch, level)
    assert tokens_of(folder, f'["{runner}", "eager"]', depth) == expected
    assert runners[0].eager_steps == len(ran[EagerRunner]) - eager_before[0]
    assert (runners[0].eager_steps > 0) == (level == "one_token")
    assert {1, 2, 4} <= {key.rows for key in ran[CapturingRunner] if key.q_len}, (
        "three rows run as four, one is padding"
    )
    if level != "one_token":
        assert {key.tokens for key in ran[CapturingRunner] if not key.q_len} == {48}
        assert len(ran[EagerRunner]) == 1, "the warm-up"


def test_recorded_steps_rotate_and_store_in_one(
    folder: Path, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the backend has the part: every key, while it is recorded."""
    recordable(monkeypatch, "any")
    rows: list[int] = []

    class Noting(Rotating):
        def store_rotated(self, plan: AttentionPlan, layer: LayerHandle, q: Tensor, *rest: Any) -> None:
            rows.append(len(q))
            super().store_rotated(plan, layer, q, *rest)

    whole = WholeTables.parts
    monkeypatch.setattr(WholeTables, "parts", lambda self: replace(whole(self), rotated=Noting(self)))
    assert tokens_of(folder, '["cuda-full", "eager"]', 1) == expected
    assert {1, 2, 4, 48} <= set(rows)
