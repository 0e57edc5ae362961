"""The weights of a tiny Llama with tied embeddings, and its config. Knows no storage form."""

from __future__ import annotations

from typing import Any

import numpy as np

from srtkit_conformance.kits.model_loader.harness import Values

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD, LAYERS, VOCAB = 64, 4, 2, 96, 2, 48

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB,
    "tie_word_embeddings": True,
}

ABSENT = "lm_head.weight"
"""Tied to the embeddings, so nobody stores it."""


def shapes() -> dict[str, tuple[int, ...]]:
    """Canonical name → shape."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    kv = HIDDEN // HEADS * KV_HEADS
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        found[f"{at}.input_layernorm.weight"] = (HIDDEN,)
        found[f"{at}.self_attn.q_proj.weight"] = (HIDDEN, HIDDEN)
        found[f"{at}.self_attn.k_proj.weight"] = (kv, HIDDEN)
        found[f"{at}.self_attn.v_proj.weight"] = (kv, HIDDEN)
        found[f"{at}.self_attn.o_proj.weight"] = (HIDDEN, HIDDEN)
        found[f"{at}.post_attention_layernorm.weight"] = (HIDDEN,)
        found[f"{at}.mlp.gate_proj.weight"] = (FEED_FORWARD, HIDDEN)
        found[f"{at}.mlp.up_proj.weight"] = (FEED_FORWARD, HIDDEN)
        found[f"{at}.mlp.down_proj.weight"] = (HIDDEN, FEED_FORWARD)
    found["model.norm.weight"] = (HIDDEN,)
    return found


def weights() -> dict[str, Values]:
    """Canonical name → values: float32 numbers, all different."""
    random = np.random.default_rng(11)
    return {
        name: random.standard_normal(shape).astype(np.float32).astype(np.float64) for name, shape in shapes().items()
    }
