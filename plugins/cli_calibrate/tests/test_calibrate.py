"""The command end to end on a tiny model: what is measured, what is written, and what an engine makes of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from srtkit import Engine
from srtkit.cli.main import main
from srtkit.spec.errors import ConfigError, LoaderError
from srtkit_conformance.inside import shortcomings
from srtkit_plugin_attention_torch.backend import TorchAttention
from srtkit_plugin_cli_calibrate.kv import scales_of
from srtkit_plugin_cli_calibrate.prompts import read_prompts
from tests.live_server import tiny

FP8 = {"memory.kv_dtype": "float8_e4m3fn"}
TEXTS = ["The mill stands at the river.", "for i in range(10): print(i)", "1, 2, 3, 5, 8"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Many small operations: a second thread would mostly wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A settings file with backends of its own, and texts beside it."""
    (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS))
    roles = {"attention": 'use = "torch"\nprefill = "torch"'}
    return tiny.write_config(tmp_path / "tiny.toml", tiny.make_model(tmp_path / "model"), roles)


def command(config: Path, *more: str) -> list[str]:
    return ["calibrate", "kv", "--config", str(config), "--prompts", str(config.with_name("texts.txt")), *more]


def largest(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Float32 [2]: magnitudes of keys and values."""
    return torch.stack([k.abs().max(), v.abs().max()])


def test_scales_are_those_of_what_was_stored(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: dict[int, torch.Tensor] = {}
    warming_up = []
    store, fill = TorchAttention.store, TorchAttention.fill

    def filling(self, plan, batch, view):  # type: ignore[no-untyped-def]
        warming_up[:] = [not batch.slots.any()]
        fill(self, plan, batch, view)

    def storing(self, plan, layer, k, v):  # type: ignore[no-untyped-def]
        if not warming_up[0]:
            stored[layer.index] = torch.maximum(stored.get(layer.index, torch.zeros(2)), largest(k, v))
        store(self, plan, layer, k, v)

    monkeypatch.setattr(TorchAttention, "fill", filling)
    monkeypatch.setattr(TorchAttention, "store", storing)
    out = tmp_path / "elsewhere.json"
    dtype = "float8_e4m3fnuz"
    assert main(command(config, "--margin", "1.5", "--max-tokens", "4", "--kv-dtype", dtype, "--out", str(out))) == 0
    found = json.loads(out.read_text())
    assert (found["format"], found["kv_dtype"]) == ("srtkit-kv-scales/1", dtype)
    assert found["layers"].keys() == {"0", "1"} and "margin 1.5" in found["made"]
    for layer, pair in found["layers"].items():
        assert [pair["k"], pair["v"]] == pytest.approx((1.5 * stored[int(layer)] / 240).tolist(), rel=1e-5)
    assert not list((tmp_path / "model").glob("kv_scales*"))


def test_an_engine_says_that_it_has_none_then_takes_those_of_the_command_and_no_others(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    explain = ["explain", str(config), "--set", "memory.kv_dtype=float8_e4m3fn"]
    assert main(explain) == 0
    assert "FP8 KV has scale 1.0" in (said := capsys.readouterr().out) and "srt calibrate kv" in said
    assert main(command(config)) == 0
    capsys.readouterr()
    assert main(explain) == 0 and "FP8 KV" not in capsys.readouterr().out

    handed: dict[int, dict[str, float]] = {}
    store = TorchAttention.store

    def storing(self, plan, layer, k, v):  # type: ignore[no-untyped-def]
        assert all(one.dtype == torch.float32 and one.shape == () for one in layer.scales.values())
        handed[layer.index] = {name: float(scale) for name, scale in layer.scales.items()}
        store(self, plan, layer, k, v)

    monkeypatch.setattr(TorchAttention, "store", storing)
    file = config.parent / "model" / "kv_scales.json"
    found: dict[str, Any] = json.loads(file.read_text())
    with Engine.from_config(config, FP8 | {"model.dtype": "bfloat16"}) as engine:  # measured in float32
        about = engine.control("info")["kv_scales"]
        engine.generate([[1, 2, 3]], max_tokens=2, ignore_eos=True)
    assert about == {"file": str(file), "weights": found["weights"]}
    assert handed == {int(layer): pytest.approx(pair) for layer, pair in found["layers"].items()}
    with pytest.raises(LoaderError, match="other weights"):
        Engine.from_config(config, FP8 | {"model_loader.use": "dummy"})


@pytest.mark.full
def test_an_engine_takes_scales_that_stand_among_the_weights(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As llm-compressor writes them where it quantises nothing but KV."""
    folder = config.parent / "model"
    (weights,) = folder.glob("*.safetensors")
    scales = {f"model.layers.{i}.self_attn.{name}_scale": torch.tensor([0.5 + i]) for i in (0, 1) for name in "kv"}
    save_file(load_file(weights) | scales, weights, {"format": "pt"})
    about = json.loads((folder / "config.json").read_text())
    about["quantization_config"] = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}
    (folder / "config.json").write_text(json.dumps(about))
    handed: dict[int, dict[str, float]] = {}
    store = TorchAttention.store

    def storing(self, plan, layer, k, v):  # type: ignore[no-untyped-def]
        handed[layer.index] = {name: float(scale) for name, scale in (layer.scales or {}).items()}
        store(self, plan, layer, k, v)

    monkeypatch.setattr(TorchAttention, "store", storing)
    for settings, wanted in (({}, {}), (FP8, {"k": 0.5, "v": 0.5})):
        with Engine.from_config(config, settings) as engine:
            engine.generate([[1, 2, 3]], max_tokens=2, ignore_eos=True)
        assert handed[0] == wanted


def test_where_it_may_not_write_it_says_so(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(config, "--out", str(tmp_path / "nowhere" / "scales.json"))) == ConfigError.exit_code
    assert "name another place with --out" in capsys.readouterr().err


def test_texts_of_both_forms(tmp_path: Path) -> None:
    plain, lines = tmp_path / "a.txt", tmp_path / "a.jsonl"
    plain.write_text('one\n\n"two"\n')
    lines.write_text('"one"\n{"text": "two"}\n{"prompt": "three"}\n')
    assert read_prompts(plain) == ["one", '"two"']
    assert read_prompts(lines) == ["one", "two", "three"]
    lines.write_text('"one"\n{"messages": []}\n')
    with pytest.raises(ConfigError, match=r"a\.jsonl:2: has no text"):
        read_prompts(lines)
    plain.write_text("\n")
    with pytest.raises(ConfigError, match="has no texts"):
        read_prompts(plain)


def test_scales_map_the_largest_to_the_largest() -> None:
    assert scales_of({3: (448.0, 0.0)}, "float8_e4m3fn", 2.0) == {3: (2.0, 1.0)}
    assert scales_of({3: (24.0, 480.0)}, "float8_e4m3fnuz", 1.0) == {3: (0.1, 2.0)}


@pytest.mark.full
def test_over_the_reference_it_keeps_the_contract() -> None:
    assert shortcomings("attention:calibrate", level=2) == []
