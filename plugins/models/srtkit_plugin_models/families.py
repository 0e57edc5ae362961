"""How the architectures of the Llama family differ, as data. Knows no config and no torch.

The defaults are those that transformers 5.17 gives to a config that leaves the key out.
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


@dataclass(frozen=True)
class Family:
    """One architecture. `windows`: which layers see `sliding_window` tokens only.

    `biases` are the keys that this architecture reads: "attention_bias" puts one on q, k, v and o,
    "mlp_bias" on gate, up and down; `qkv_bias` means that q, k and v always have one.
    """

    defaults: Mapping[str, Any]
    biases: frozenset[str] = frozenset()
    qkv_bias: bool = False
    qk_norm: bool = False
    windows: Literal["none", "all", "by_layer"] = "none"


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
}
