"""Tiny random models of every family, saved by transformers and served from their folder: equal greedy tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from srtkit import Engine

SIZES: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 192,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MIXED = ["full_attention", "sliding_attention", "full_attention"]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3-tied": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 11}),  # not a multiple of the page, shorter than prompts
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
    "qwen3-windows": ("Qwen3", {"use_sliding_window": True, "sliding_window": 20, "layer_types": MIXED}),
}
LENGTHS = (1, 9, 40, 100)
NEW_TOKENS = 32
MIN_GAP = 1e-4
"""Of the two largest logits, or the reference's choice is luck: take another seed then."""

ENGINES = (("radix", "24"), ("chunk", "2048"))
"""Prefix cache, and prompt tokens in a step."""


@dataclass(frozen=True)
class Family:
    """A model's folder, prompts, and how transformers continues them."""

    folder: Path
    prompts: list[list[int]]
    tokens: list[list[int]]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tensors are tiny: a second thread costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Family:
    """Make and save the model."""
    name, changes = FAMILIES[request.param]
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **changes}, initializer_range=0.3)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    prompts = [torch.randint(0, SIZES["vocab_size"], (n,)).tolist() for n in LENGTHS]
    return Family(folder, prompts, [continuation(model, prompt) for prompt in prompts])


def continuation(model: Any, prompt: list[int]) -> list[int]:
    model.generation_config.eos_token_id = None
    generated = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    first, second = torch.cat(generated.logits).topk(2).values.unbind(-1)
    assert float((first - second).min()) > MIN_GAP
    tokens: list[int] = generated.sequences[0, len(prompt) :].tolist()
    return tokens


@pytest.fixture(params=ENGINES, ids="-".join)
def engine(request: pytest.FixtureRequest, family: Family, tmp_path: Path) -> Iterator[Engine]:
    """Serves the family in float32."""
    cache, chunk = request.param
    config = tmp_path / "tiny.toml"
    config.write_text(
        f'model = {{ source = "{family.folder}", dtype = "float32" }}\n'
        f'platform = {{ use = "cpu", options.threads = 1 }}\n'
        f'prefix_cache.use = "{cache}"\n'
        f"scheduler.chunk_tokens = {chunk}\n"
    )
    with Engine.from_config(config) as engine:
        yield engine


def test_greedy_tokens_equal_those_of_transformers(engine: Engine, family: Family) -> None:
    for _ in range(2):  # the second time radix has every prompt
        found = engine.generate(family.prompts, temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
        assert [one.token_ids for one in found] == family.tokens
    for prompt, tokens in zip(family.prompts, family.tokens, strict=True):
        (alone,) = engine.generate([prompt], temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
        assert alone.token_ids == tokens
