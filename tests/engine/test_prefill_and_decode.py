"""Decode rows by one attention backend and all other rows by another, over the same pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from srtkit import Engine
from srtkit.spec.attention import Rows
from srtkit.spec.errors import Unsupported
from srtkit.spec.kv import KVLayout
from srtkit_plugin_attention_torch import kv_layouts
from srtkit_plugin_attention_torch.backend import TorchAttention
from tests.live_server import tiny

PROMPTS = [list(range(5, 40)), [1, 2, 3], [7] * 90]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_model(tmp_path_factory.mktemp("model"))


def tokens(model: Path, folder: Path, **sets: str) -> list[list[int]]:
    """Greedy tokens of the prompts, together and each again from the cache, in chunks of 32."""
    file = folder / "settings.toml"
    file.write_text(f'[model]\nsource = "{model}"\ndtype = "float32"\n')
    given = {"memory.kv_gib": "0.03", "scheduler.chunk_tokens": "32", "attention.use": "torch"}
    with Engine.from_config(file, given | {f"attention.{name}": value for name, value in sets.items()}) as engine:
        made = engine.generate(PROMPTS, temperature=0, max_tokens=8, ignore_eos=True)
        for prompt in PROMPTS:
            made += engine.generate([prompt], temperature=0, max_tokens=8, ignore_eos=True)
    return [one.token_ids for one in made]


@pytest.mark.parametrize("sets", [{"decode": "cpu-native"}, {"prefill": "cpu-native"}, {"decode": "torch"}], ids=str)
def test_tokens_are_those_of_one_backend_alone(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: dict[str, str]
) -> None:
    pytest.importorskip("srtkit_plugin_cpu_native")
    alone = tokens(model, tmp_path)
    covered: set[Rows] = set()
    attend = TorchAttention.attend

    def seen(*args: Any, **given: Any) -> None:
        covered.add(given.get("rows", Rows.ALL))
        attend(*args, **given)

    monkeypatch.setattr(TorchAttention, "attend", seen)
    assert tokens(model, tmp_path, **sets) == alone
    # The other backend has the other rows; one that is named for what it does already is alone.
    assert covered == {
        {"decode": Rows.REST, "prefill": Rows.LEADING}[next(iter(sets))] if "cpu-native" in sets.values() else Rows.ALL
    }


def test_backends_without_a_common_layout_are_refused_with_both_lists(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = pytest.importorskip("srtkit_plugin_cpu_native.attention")

    def other(*given: Any) -> list[KVLayout]:
        return [replace(one, name="vec/1") for one in kv_layouts(*given)]

    monkeypatch.setattr(native, "kv_layouts", other)
    lists = r"attention:torch offers \[nhd/1\]; attention:cpu-native offers \[vec/1\]"
    with pytest.raises(Unsupported, match=lists):
        tokens(model, tmp_path, prefill="cpu-native")
