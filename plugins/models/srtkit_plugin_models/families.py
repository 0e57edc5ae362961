"""How the architectures differ, as data: defaults, stored names, and what is put around a plain decoder layer.

Knows no config and no torch. The defaults are those that transformers 5.17 gives to a config that leaves
the key out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_COMMON: dict[str, Any] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
}
_QWEN: dict[str, Any] = _COMMON | {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_GEMMA: dict[str, Any] = _COMMON | {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "sliding_window": 4096,
    "layer_types": None,
    "query_pre_attn_scalar": 256,
    "use_sliding_window": True,
    "use_bidirectional_attention": False,
}
_MIXTRAL: dict[str, Any] = _COMMON | {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
_QWEN_MOE: dict[str, Any] = _COMMON | {
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}
_BAMBA: dict[str, Any] = _COMMON | {
    "num_key_value_heads": 8,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "attn_layer_indices": None,
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "time_step_limit": None,
}
_DEEPSEEK: dict[str, Any] = _COMMON | {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@dataclass(frozen=True)
class Names:
    """Stored names of a layer's parts, below "model.layers.N", and of the last norm. Empty: there is no such part.

    The two `post` norms are of an output, before it is added to the residual. `expert`: the gate, up and down of one.
    """

    mlp: str = "mlp"
    mlp_norm: str = "post_attention_layernorm"
    mixer_post_norm: str = ""
    mlp_post_norm: str = ""
    last_norm: str = "model.norm"
    expert: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Family:
    """One architecture. `windows`: which layers see `sliding_window` tokens only.

    `biases` are the keys that this architecture reads: "attention_bias" puts one on q, k, v and o,
    "mlp_bias" on gate, up and down; `qkv_bias` means that q, k and v always have one. `window_component`: the
    pages of window layers have a component of their own. `offset_norms`: norms are stored as the difference of
    their weight to 1. `soft_caps` are the keys of caps that it applies. `local_theta` is that of window layers where
    they have a rotary embedding of their own, 0 where they have not. `rotary`: the share of a head that is rotated.
    `mamba`: layers that are not in `attn_layer_indices` are Mamba2. `latent`: attention is over latents (MLA).
    `expert_size`: the key of an expert's intermediate size, empty for a family without experts.
    """

    defaults: Mapping[str, Any]
    names: Names = Names()
    biases: frozenset[str] = frozenset()
    qkv_bias: bool = False
    qk_norm: bool = False
    windows: Literal["none", "all", "by_layer"] = "none"
    window_component: bool = False
    offset_norms: bool = False
    scaled_embedding: bool = False
    soft_caps: frozenset[str] = frozenset()
    theta: float = 10_000.0
    local_theta: float = 0.0
    rotary: float = 1.0
    mamba: bool = False
    latent: bool = False
    expert_size: str = ""


_GEMMA_NAMES = Names(
    mlp_norm="pre_feedforward_layernorm",
    mixer_post_norm="post_attention_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(
        defaults=_COMMON | {"max_position_embeddings": 2048},
        biases=frozenset({"attention_bias", "mlp_bias"}),
    ),
    "MistralForCausalLM": Family(
        defaults=_COMMON | {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
        windows="all",
    ),
    "Qwen2ForCausalLM": Family(defaults=_QWEN, qkv_bias=True, windows="by_layer"),
    "Qwen3ForCausalLM": Family(
        defaults=_QWEN | {"head_dim": 128},
        biases=frozenset({"attention_bias"}),
        qk_norm=True,
        windows="by_layer",
    ),
    "MixtralForCausalLM": Family(
        defaults=_MIXTRAL,
        names=Names(mlp="block_sparse_moe", expert=("w1", "w3", "w2")),
        windows="all",
        theta=1_000_000.0,
        expert_size="intermediate_size",
    ),
    "Qwen3MoeForCausalLM": Family(
        defaults=_QWEN_MOE,
        biases=frozenset({"attention_bias"}),
        qk_norm=True,
        windows="all",
        expert_size="moe_intermediate_size",
    ),
    "Gemma2ForCausalLM": Family(
        defaults=_GEMMA
        | {
            "max_position_embeddings": 8192,
            "sliding_window_pattern": 2,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        names=_GEMMA_NAMES,
        biases=frozenset({"attention_bias"}),
        windows="by_layer",
        window_component=True,
        offset_norms=True,
        scaled_embedding=True,
        soft_caps=frozenset({"attn_logit_softcapping", "final_logit_softcapping"}),
    ),
    "Gemma3ForCausalLM": Family(
        defaults=_GEMMA | {"max_position_embeddings": 131072, "sliding_window_pattern": 6},
        names=_GEMMA_NAMES,
        biases=frozenset({"attention_bias"}),
        qk_norm=True,
        windows="by_layer",
        window_component=True,
        offset_norms=True,
        scaled_embedding=True,
        soft_caps=frozenset({"final_logit_softcapping"}),
        theta=1_000_000.0,
        local_theta=10_000.0,
    ),
    "BambaForCausalLM": Family(
        defaults=_BAMBA,
        names=Names(mlp="feed_forward", mlp_norm="pre_ff_layernorm", last_norm="model.final_layernorm"),
        biases=frozenset({"attention_bias", "mlp_bias"}),
        rotary=0.5,
        mamba=True,
    ),
    "DeepseekV2ForCausalLM": Family(
        defaults=_DEEPSEEK | {"max_position_embeddings": 2048, "first_k_dense_replace": 0},
        biases=frozenset({"attention_bias", "mlp_bias"}),
        latent=True,
    ),
    "DeepseekV3ForCausalLM": Family(
        defaults=_DEEPSEEK | {"max_position_embeddings": 4096, "first_k_dense_replace": 3, "rope_interleave": True},
        biases=frozenset({"attention_bias"}),
        latent=True,
    ),
}
