"""`plan` and the reading of configs: what is asked of core, what is refused by the key's name. No torch needed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from srtkit.spec.attention import MlaDims
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import Shard
from srtkit.spec.models import ModelPlan, PlanRequest
from srtkit_plugin_models import srtkit_models
from srtkit_plugin_models.config import read_config

LLAMA_31_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 100000, "rope_type": "default"},
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
DEEPSEEK_DENSE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "first_k_dense_replace": 27,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 102400,
}
"""DeepSeek-V2-Lite, but with a plain MLP in every layer."""
QWEN = SMOLLM2 | {"architectures": ["Qwen2ForCausalLM"]}
QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MIXTRAL_8X7B: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
MISTRAL = SMOLLM2 | {"architectures": ["MistralForCausalLM"]}


def plan(config: dict[str, Any], dtype: str = "bfloat16", world: int = 1, rank: int = 0) -> ModelPlan:
    return srtkit_models().plan(PlanRequest(config, dtype, "auto", Shard(rank, world)))


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def test_the_plugin_plans_without_torch() -> None:
    code = (
        "import sys, srtkit_plugin_models as m; from srtkit.spec.models import PlanRequest\n"
        f"m.srtkit_models().plan(PlanRequest({SMOLLM2!r}, 'auto', 'auto'))\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0


def test_a_plan_of_llama_31() -> None:
    made = plan(LLAMA_31_8B)
    assert (made.max_context, made.vocab_size, made.hidden_size) == (131072, 128256, 4096)
    assert made.weight_bytes == 2 * 8_030_261_248
    spec = made.attention[31]
    assert len(made.attention) == 32
    assert (spec.q_heads, spec.kv_heads, spec.head_dim, spec.window) == (32, 8, 128, 0)
    assert spec.scale == 128**-0.5
    assert (spec.dtype, spec.kv_dtype, made.dtype) == ("bfloat16",) * 3


def test_a_plan_of_latent_attention() -> None:
    made, share = plan(DEEPSEEK_DENSE), plan(DEEPSEEK_DENSE, world=4, rank=3)
    spec, dims = made.attention[26], MlaDims(rank=512, rope=64, nope=128, v_head_dim=128)
    assert (spec.q_heads, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.mla) == (16, 1, 576, 512, dims)
    assert spec.scale == pytest.approx(0.1147, abs=5e-5)  # 192**-0.5 * (0.1 * 0.707 * log 40 + 1)**2
    assert made.attention[0] == spec and made.max_context == 163840
    attention = 2048 * 16 * 192 + 2048 * 576 + 512 + 512 * 16 * 256 + 16 * 128 * 2048
    layer = attention + 3 * 2048 * 10944 + 2 * 2048
    assert made.weight_bytes == 2 * (27 * layer + 2 * 102400 * 2048 + 2048)
    assert share.attention[0] == replace(spec, q_heads=4)


@pytest.mark.parametrize(("heads", "wanted"), [(16, 10944), (128, 57344)])
def test_a_step_has_memory_for_queries_over_latents(heads: int, wanted: int) -> None:
    """Of a head 192 numbers in full form, 64 rotated, 576 over latents, 512 as a result; a third of all."""
    config = DEEPSEEK_DENSE | {"num_attention_heads": heads, "num_key_value_heads": heads}
    assert plan(config).intermediate_size == wanted
    assert plan(config, world=8).intermediate_size == wanted // 8


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("first_k_dense_replace", {"first_k_dense_replace": 1}),
        ("first_k_dense_replace", {"first_k_dense_replace": None}),
        ("first_k_dense_replace", {"architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 3}),
        ("num_key_value_heads", {"num_key_value_heads": 8}),
        ("kv_lora_rank", {"kv_lora_rank": None}),
        ("q_lora_rank", {"q_lora_rank": 0}),
        ("mlp_bias", {"architectures": ["DeepseekV3ForCausalLM"], "mlp_bias": True}),
    ],
)
def test_refusals_of_latent_attention_name_the_key(key: str, change: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=rf"config key {key}:"):
        plan(DEEPSEEK_DENSE | change)


@pytest.mark.parametrize(
    ("config", "parameters", "name"),
    [
        (QWEN3_30B_A3B, 30_532_122_624, "model.layers.47.mlp.experts.127.down_proj.weight"),
        (MIXTRAL_8X7B, 46_702_792_704, "model.layers.31.block_sparse_moe.experts.7.w2.weight"),
    ],
)
def test_plans_of_experts_count_as_published(config: dict[str, Any], parameters: int, name: str) -> None:
    made = plan(config)
    assert made.weight_bytes == 2 * parameters
    assert name in {source for entry in made.weights for source in entry.sources}


def test_a_step_of_experts_takes_memory_for_each_that_a_token_chooses() -> None:
    assert plan(QWEN3_30B_A3B).intermediate_size == 8 * (768 + 2048)
    assert plan(MIXTRAL_8X7B, world=2).intermediate_size == 2 * (14336 // 2 + 4096)


@pytest.mark.parametrize(
    ("change", "sparse"),
    [
        ({}, [True] * 4),
        ({"mlp_only_layers": None}, [True] * 4),
        ({"mlp_only_layers": [0, 2]}, [False, True, False, True]),
        ({"decoder_sparse_step": 2}, [False, True, False, True]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [False, True, False, False]),
    ],
)
def test_layers_with_experts(change: dict[str, Any], sparse: list[bool]) -> None:
    config = read_config(QWEN3_30B_A3B | {"num_hidden_layers": 4} | change)
    assert [layer.experts for layer in config.layers] == sparse


def test_the_number_of_experts_has_two_keys() -> None:
    five = read_config(without(QWEN3_30B_A3B, "num_experts") | {"num_local_experts": 64})
    assert five.experts == replace(read_config(QWEN3_30B_A3B).experts, count=64)


def test_a_tied_head_costs_nothing_and_is_known() -> None:
    made = plan(SMOLLM2)
    assert made.weight_bytes == 2 * 134_515_008
    head = made.weights[-1]
    assert (head.sources, head.tied_to) == (("lm_head.weight",), "model.embed_tokens.weight")


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (SMOLLM2, "bfloat16"),
        (LLAMA_31_8B, "bfloat16"),
        (SMOLLM2 | {"dtype": "torch.float16"}, "float16"),
        (without(SMOLLM2, "dtype"), "float32"),
    ],
)
def test_auto_dtype_is_that_of_the_config(config: dict[str, Any], wanted: str) -> None:
    made = plan(config, "auto")
    assert made.dtype == wanted
    assert {spec.kv_dtype for spec in made.attention.values()} == {wanted}
    assert plan(config, "float32").dtype == "float32"


def test_theta_is_found_in_both_styles_and_defaults_as_in_transformers() -> None:
    assert read_config(SMOLLM2).ropes[0].theta == 100000.0
    old = without(SMOLLM2, "rope_parameters") | {"rope_theta": 100000, "rope_scaling": None}
    assert read_config(old).ropes == read_config(SMOLLM2).ropes
    inner = without(SMOLLM2, "rope_parameters") | {"rope_theta": 7.0, "rope_parameters": {"rope_type": "default"}}
    assert read_config(inner).ropes[0].theta == 7.0
    assert read_config(without(SMOLLM2, "rope_parameters")).ropes[0].theta == 10000.0


def test_yarn_reaches_as_far_as_its_factor() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert plan(SMOLLM2 | {"rope_parameters": None, "rope_scaling": yarn}).max_context == 16384
    short = yarn | {"factor": 1.5}
    assert plan(SMOLLM2 | {"rope_parameters": None, "rope_scaling": short}).max_context == 8192


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (SMOLLM2 | {"num_hidden_layers": 3}, [0, 0, 0]),
        (MISTRAL | {"num_hidden_layers": 3}, [4096, 4096, 4096]),
        (MISTRAL | {"num_hidden_layers": 3, "sliding_window": None}, [0, 0, 0]),
        (MISTRAL | {"num_hidden_layers": 3, "sliding_window": 16}, [16, 16, 16]),
        (QWEN | {"num_hidden_layers": 3, "sliding_window": 16, "max_window_layers": 1}, [0, 0, 0]),
        (QWEN | {"num_hidden_layers": 3, "use_sliding_window": True, "max_window_layers": 2}, [0, 0, 4096]),
        (
            QWEN
            | {
                "num_hidden_layers": 3,
                "use_sliding_window": True,
                "sliding_window": 16,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            [16, 0, 16],
        ),
    ],
)
def test_windows(config: dict[str, Any], windows: list[int]) -> None:
    assert [spec.window for _, spec in sorted(plan(config).attention.items())] == windows


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("architectures", {"architectures": ["GemmaForCausalLM"]}),
        ("architectures", {"architectures": None}),
        ("hidden_size", {"hidden_size": None}),
        ("vocab_size", {"vocab_size": "many"}),
        ("num_key_value_heads", {"num_key_value_heads": 4}),
        ("hidden_act", {"hidden_act": "gelu"}),
        ("quantization_config", {"quantization_config": {"quant_method": "fp8"}}),
        ("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
        ("sliding_window", {"sliding_window": 128}),
        ("layer_types", {"layer_types": ["sliding_attention"] * 30}),
        ("layer_types", {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["chunked_attention"] * 30}),
        ("layer_types", {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention"]}),
        ("mlp_bias", {"architectures": ["Qwen2ForCausalLM"], "mlp_bias": True}),
        ("attention_bias", {"architectures": ["MistralForCausalLM"], "attention_bias": True}),
        ("rope_type", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}),
        ("rope_parameters.factor", {"rope_parameters": {"rope_type": "linear"}}),
        (
            "rope_parameters.low_freq_factor",
            {"rope_parameters": {"rope_type": "llama3", "factor": 8, "high_freq_factor": 4}},
        ),
        ("rope_parameters", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
        ("rope_scaling", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("num_experts_per_tok", QWEN3_30B_A3B | {"num_experts_per_tok": 129}),
        ("num_experts_per_tok", MIXTRAL_8X7B | {"num_experts_per_tok": 0}),
        ("moe_intermediate_size", QWEN3_30B_A3B | {"moe_intermediate_size": None}),
        ("decoder_sparse_step", QWEN3_30B_A3B | {"decoder_sparse_step": 0}),
        ("mlp_only_layers", QWEN3_30B_A3B | {"mlp_only_layers": [48]}),
        ("n_shared_experts", QWEN3_30B_A3B | {"n_shared_experts": 1}),
        ("n_group", MIXTRAL_8X7B | {"n_group": 8}),
        ("attention_bias", MIXTRAL_8X7B | {"attention_bias": True}),
    ],
)
def test_refusals_name_the_key(key: str, change: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=rf"config key {key}:"):
        plan(SMOLLM2 | change)


def test_an_unserved_dtype_is_refused() -> None:
    with pytest.raises(Unsupported, match="float8_e4m3fn"):
        plan(SMOLLM2, "float8_e4m3fn")


@pytest.mark.parametrize(("config", "heads"), [(LLAMA_31_8B, (8, 2)), (DEEPSEEK_DENSE, (4, 1))])
def test_shares_of_ranks_add_up(config: dict[str, Any], heads: tuple[int, int]) -> None:
    whole, shares = plan(config), [plan(config, world=4, rank=rank) for rank in range(4)]
    for share in shares:
        assert (share.attention[0].q_heads, share.attention[0].kv_heads) == heads
        assert share.intermediate_size * 4 == whole.intermediate_size
    for index, entry in enumerate(whole.weights):
        parts = [share.weights[index] for share in shares]
        assert all(replace(part, shape=entry.shape) == entry for part in parts)
        copies = 4 if entry.slice_dim is None else 1
        assert sum(prod(part.shape) for part in parts) == prod(entry.shape) * copies
        assert entry.shape[0] == sum(shape[0] for shape in entry.source_shapes)


@pytest.mark.parametrize(
    ("key", "change", "world"),
    [
        ("num_key_value_heads", {}, 16),
        ("num_attention_heads", {}, 3),
        ("intermediate_size", {"intermediate_size": 14337}, 2),
        ("attention_bias", {"attention_bias": True}, 2),
        ("mlp_bias", {"mlp_bias": True}, 2),
        ("moe_intermediate_size", QWEN3_30B_A3B | {"moe_intermediate_size": 770}, 4),
        ("num_key_value_heads", MIXTRAL_8X7B, 16),
    ],
)
def test_worlds_that_do_not_fit_are_refused(key: str, change: dict[str, Any], world: int) -> None:
    with pytest.raises(Unsupported, match=rf"config key {key}:"):
        plan(LLAMA_31_8B | change, world=world)
