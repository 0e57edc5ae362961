"""One engine made of skeletons alone generates what an engine of the house's own plugins does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from tests.template.conftest import Made

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "eos_token_id": 96,
}
COMMON = '[memory]\nkv_gib = 0.01\n[scheduler]\nchunk_tokens = 16\n[model]\ndtype = "float32"\nsource = '
SKELETONS = """
[platform]
use = "odd-name"
[attention]
use = "odd-name"
[prefix_cache]
use = "odd-name"
[graph_runner]
use = ["odd-name"]
[model_loader]
use = ["odd-name"]
[transport]
use = "odd-name"
[ops]
use = ["odd-name"]
[models]
use = ["odd-name"]
"""
HOUSE = '\n[platform]\nuse = "cpu"\n[transport]\nuse = "inproc"\n'
GENERATE = """
import json, sys
from pathlib import Path
from srtkit import Engine
from srtkit.config.settings import load_settings
tokens = []
for config in json.loads(sys.argv[1]):
    with Engine(load_settings(Path(config))) as engine:  # from_config would take another transport
        prompts = [[5, 17, 3], list(range(40)), [9] * 20, [5, 17, 3]]
        done = engine.generate(prompts, temperature=0, max_tokens=12, ignore_eos=True)
        tokens.append([one.token_ids for one in done])
print(json.dumps(tokens))
"""


def weights() -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(11)

    def linear(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return np.asarray(random.standard_normal((rows, columns)) * 2 / columns**0.5, np.float32)

    stored = {"model.embed_tokens.weight": linear(97, 64), "lm_head.weight": linear(97, 64)}
    for index in range(2):
        layer = f"model.layers.{index}"
        stored |= {f"{layer}.self_attn.{name}_proj.weight": linear(rows, 64) for name, rows in (("q", 64), ("k", 32))}
        stored |= {
            f"{layer}.self_attn.v_proj.weight": linear(32, 64),
            f"{layer}.self_attn.o_proj.weight": linear(64, 64),
        }
        stored |= {f"{layer}.mlp.{name}_proj.weight": linear(96, 64) for name in ("gate", "up")}
        stored |= {f"{layer}.mlp.down_proj.weight": linear(64, 96)}
        norms = ("input_layernorm", "post_attention_layernorm")
        stored |= {f"{layer}.{name}.weight": 1 + linear(1, 64)[0] for name in norms}
    return stored | {"model.norm.weight": 1 + linear(1, 64)[0]}


def write_model(folder: Path, architecture: str) -> Path:
    folder.mkdir()
    config: dict[str, Any] = {"architectures": [architecture], **SIZES}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.timeout(300)
def test_an_engine_of_skeletons(made: Made, tmp_path: Path) -> None:
    stored = weights()
    ours = write_model(tmp_path / "npz", "OddNameForCausalLM")
    np.savez(ours / "weights.npz", **stored)  # type: ignore[arg-type]
    house = write_model(tmp_path / "safetensors", "LlamaForCausalLM")
    save_file(stored, house / "model.safetensors")
    for folder, rest in ((ours, SKELETONS), (house, HOUSE)):
        (folder / "config.toml").write_text(f'{COMMON}"{folder}"\n{rest}')
    got, wanted = made.overlay.answer(GENERATE, [str(folder / "config.toml") for folder in (ours, house)])
    assert got == wanted
    assert [len(tokens) for tokens in got] == [12] * 4
    assert len(set(map(tuple, got))) == 3
