"""Tiny hybrid models talk in turns: the same tokens with any cache, also when every request has to evict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from srtkit import Engine

CONTEXT, PAGE, TURNS, NEW = 192, 8, 3, 12
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "windows": {
        "architectures": ["Gemma3ForCausalLM"],
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 21,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "states": {
        "architectures": ["BambaForCausalLM"],
        "attn_layer_indices": [1],
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
    },
}
CACHES = {"windows": "radix", "states": "mamba"}
LARGE, SMALL = 4_000_000, 45_000
"""Bytes of all pools: for everything, and for little more than what runs at once."""
SYSTEM = [(7 * i) % 100 + 1 for i in range(41)]
"""What all conversations begin with: five pages and a token."""


def engine_of(folder: Path, name: str, cache: str, kv_bytes: int) -> Engine:
    """Serves a model with made-up weights. `kv_bytes` for all pools together."""
    source = folder / f"{name}.json"
    source.write_text(json.dumps(SIZES | MODELS[name]))
    config = folder / "engine.toml"
    config.write_text(
        f'model = {{ source = "{source}", dtype = "float32" }}\n'
        'model_loader = { use = "dummy", options.dummy = { std = 0.3, tokenizer = "none" } }\n'
        'platform = { use = "cpu", options.threads = 1 }\n'
        'recurrent.use = "torch"\n'
        f"memory = {{ page_size = {PAGE}, kv_gib = {kv_bytes / 2**30} }}\n"
        f'prefix_cache.use = "{cache}"\n'
        "scheduler = { chunk_tokens = 32, max_running = 3 }\n"
    )
    return Engine.from_config(config)


def talk(engine: Engine) -> tuple[list[list[int]], list[int]]:
    """Three conversations of three turns, all of a turn at once: every answer, and what was cached for each."""
    histories = [[*SYSTEM, person, person + 1] for person in (11, 22, 33)]
    answers, cached = [], []
    for turn in range(TURNS):
        for number, found in enumerate(engine.generate(histories, temperature=0, max_tokens=NEW, ignore_eos=True)):
            answers.append(found.token_ids)
            cached.append(found.cached_tokens)
            histories[number] += [*found.token_ids, 50 + turn, 51, 52]
    return answers, cached


@pytest.fixture(scope="module", params=MODELS)
def spoken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A model's name, and what it answers when nothing is shared and there is room for all."""
    with engine_of(tmp_path_factory.mktemp(request.param), request.param, "chunk", LARGE) as engine:
        answers, cached = talk(engine)
    assert not any(cached)
    assert len({tuple(answer) for answer in answers}) > 3, "a model that always says the same shows nothing"
    return request.param, answers


@pytest.mark.parametrize("kv_bytes", [SMALL, pytest.param(LARGE, marks=pytest.mark.full)], ids=["small", "roomy"])
def test_a_cache_changes_no_answer(kv_bytes: int, spoken: Any, tmp_path: Path) -> None:
    name, expected = spoken
    with engine_of(tmp_path, name, CACHES[name], kv_bytes) as engine:
        answers, first = talk(engine)
        again, second = talk(engine)
    assert answers == again == expected
    assert all(sum(cached) >= 6 * (len(SYSTEM) // PAGE * PAGE) for cached in (first, second)), (
        "hardly anything is shared"
    )
    turn_before = (len(SYSTEM) + 2 + NEW + 3) // PAGE * PAGE
    assert (first[-1] < turn_before) == (kv_bytes == SMALL), "room for the turn before, or none"
