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
GEMMA = {"head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 24}
BAMBA = {
    "attn_layer_indices": [1],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
}
EXPERTS = {
    "head_dim": 24,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
}
MIXED = ["full_attention", "sliding_attention", "full_attention"]
DEEPSEEK = {
    "num_key_value_heads": None,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 48}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3-tied": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 11}),  # not a multiple of the page, shorter than prompts
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
    "qwen3-windows": ("Qwen3", {"use_sliding_window": True, "sliding_window": 20, "layer_types": MIXED}),
    "qwen3-moe": ("Qwen3Moe", EXPERTS),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "gemma2": ("Gemma2", GEMMA | {"attn_logit_softcapping": 8.0}),  # windows in a component of their own
    "gemma3": ("Gemma3", GEMMA | {"layer_types": MIXED}),
    "gemma3-near": ("Gemma3", GEMMA | {"layer_types": MIXED[1:2] * 3}),  # no component "full"
    "bamba": ("Bamba", BAMBA),
    "bamba-pure": ("Bamba", BAMBA | {"attn_layer_indices": None}),  # nothing but states
    "deepseek2": ("DeepseekV2", DEEPSEEK | {"q_lora_rank": None}),
    "deepseek3": ("DeepseekV3", DEEPSEEK | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}),
}
FULL_ONLY = frozenset({"gemma2", "mixtral", "gemma3-near", "bamba-pure", "deepseek2"})
CONFIGS = {"Gemma3": "Gemma3Text"}
"""Families whose config class in transformers has another name."""
LENGTHS = (1, 9, 40, 100)
NEW_TOKENS = 32
MIN_GAP = 1e-4
"""Of the two largest logits, or the reference's choice is luck: take another seed then."""

ENGINES = (("shared", "24"), ("chunk", "2048"))
"""Prefix cache, and prompt tokens in a step. "shared" is radix, or mamba for models with recurrent layers."""


@dataclass(frozen=True)
class Family:
    """A model's folder, prompts, how transformers continues them, and whether it has recurrent layers."""

    folder: Path
    prompts: list[list[int]]
    tokens: list[list[int]]
    recurrent: bool


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tensors are tiny: a second thread costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.full) if name in FULL_ONLY else name for name in FAMILIES],
)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Family:
    """Make and save the model."""
    name, changes = FAMILIES[request.param]
    torch.manual_seed(3)
    made_by = getattr(transformers, f"{CONFIGS.get(name, name)}Config")
    config = made_by(**{**SIZES, **changes}, initializer_range=0.3, attn_implementation="eager")
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    if model.get_input_embeddings().padding_idx is not None:
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.3)  # of zeros nothing but zeros would come
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    prompts = [torch.randint(0, SIZES["vocab_size"], (n,)).tolist() for n in LENGTHS]
    use_cache = request.param != "bamba-pure"  # that of transformers wants a layer with attention
    return Family(folder, prompts, [continuation(model, prompt, use_cache) for prompt in prompts], name == "Bamba")


def continuation(model: Any, prompt: list[int], use_cache: bool) -> list[int]:
    model.generation_config.eos_token_id = None
    generated = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
        output_logits=True,
        use_cache=use_cache,
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
    if cache == "shared":
        cache = "mamba" if family.recurrent else "radix"
    config = tmp_path / "tiny.toml"
    config.write_text(
        f'model = {{ source = "{family.folder}", dtype = "float32" }}\n'
        f'platform = {{ use = "cpu", options.threads = 1 }}\n'
        f'prefix_cache.use = "{cache}"\n'
        + 'recurrent.use = "torch"\n' * family.recurrent
        + f"scheduler.chunk_tokens = {chunk}\n"
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
