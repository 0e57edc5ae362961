"""A whole engine with latent attention over these kernels: the tokens of `attention:torch`, which are transformers'.

Prompts at once, in chunks beside decode rows, and once more out of the prefix cache. On a CPU by Triton's interpreter.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from srtkit import Engine

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

MODEL = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "kv_lora_rank": 64,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
}
PROMPTS = [[(7 * i) % 100 + 1 for i in range(23)], [3, 4, 5]]


def tokens(folder: Path, device: str, backend: str) -> list[list[int]]:
    source, config = folder / "model.json", folder / "engine.toml"
    source.write_text(json.dumps(MODEL))
    config.write_text(
        f'model = {{ source = "{source}", dtype = "float32" }}\n'
        'model_loader = { use = "dummy", options.dummy = { std = 0.3, tokenizer = "none" } }\n'
        f'platform.use = "{device}"\n'
        f'attention.use = "{backend}"\n'
        'prefix_cache.use = "radix"\n'
        "memory = { page_size = 16, kv_gib = 0.002 }\n"
        "scheduler = { chunk_tokens = 16, max_running = 2 }\n"
    )
    with Engine.from_config(config) as engine:
        first, again = (engine.generate(PROMPTS, temperature=0, max_tokens=4, ignore_eos=True) for _ in range(2))
    assert [one.cached_tokens for one in again] == [16, 0]
    assert [one.token_ids for one in first] == [one.token_ids for one in again]
    return [one.token_ids for one in first]


def test_the_tokens_are_those_of_torch(device: str, tmp_path: Path) -> None:
    assert tokens(tmp_path, device, "triton") == tokens(tmp_path, device, "torch")
