"""The Llama family (Llama, Mistral, Qwen2, Qwen3) as formulas in float64 over one sequence. Knows no plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from srtkit.spec.attention import AttentionSpec
from srtkit_conformance.kits.models.attention import attended

FAMILY = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})


class Llama:
    """Logits float64 [T, vocab] from a config and stored weights; biases and norms of heads where they are stored."""

    def __init__(self, keys: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        self._keys = keys
        self._weights = {name: tensor.double() for name, tensor in weights.items()}
        self._size = int(keys["head_dim"])

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Of every token."""
        embedding = self._weights["model.embed_tokens.weight"]
        x = embedding[torch.tensor(list(ids))]
        for index in range(self._keys["num_hidden_layers"]):
            name = f"model.layers.{index}"
            x = x + self._attention(self._norm(x, f"{name}.input_layernorm"), f"{name}.self_attn", index)
            x = x + self._mlp(self._norm(x, f"{name}.post_attention_layernorm"), f"{name}.mlp")
        head = embedding if self._keys["tie_word_embeddings"] else self._weights["lm_head.weight"]
        return self._norm(x, "model.norm") @ head.T

    def _attention(self, x: Tensor, name: str, index: int) -> Tensor:
        spec = self._spec(index)
        q, k, v = (self._linear(x, f"{name}.{part}_proj").view(len(x), -1, self._size) for part in "qkv")
        if f"{name}.q_norm.weight" in self._weights:
            q, k = self._norm(q, f"{name}.q_norm"), self._norm(k, f"{name}.k_norm")
        return self._linear(attended(spec, self._turned(q), self._turned(k), v).flatten(1), f"{name}.o_proj")

    def _spec(self, index: int) -> AttentionSpec:
        keys = self._keys
        first = keys.get("max_window_layers", 0) if keys["architectures"][0].startswith("Qwen") else 0
        window = keys.get("sliding_window", 0) if index >= first else 0
        heads = keys["num_attention_heads"], keys["num_key_value_heads"]
        return AttentionSpec(*heads, self._size, self._size, self._size**-0.5, "float64", "float64", window)

    def _turned(self, x: Tensor) -> Tensor:
        """Dimensions i and i + D / 2 of every head as a complex number, turned by position * theta ** (-2 i / D)."""
        half = self._size // 2
        speeds = self._keys["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(len(x), dtype=torch.float64), speeds).unsqueeze(1)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), -1)

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        gate, up = self._linear(x, f"{name}.gate_proj"), self._linear(x, f"{name}.up_proj")
        return self._linear(gate * gate.sigmoid() * up, f"{name}.down_proj")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        length = (x.pow(2).mean(-1, keepdim=True) + float(self._keys["rms_norm_eps"])).sqrt()
        return x / length * self._weights[f"{name}.weight"]

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self._weights[f"{name}.weight"].T
        bias = self._weights.get(f"{name}.bias")
        return y if bias is None else y + bias
