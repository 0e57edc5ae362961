"""Known families as formulas in float64 over one sequence: Llama's kin, experts, Gemma, Bamba, DeepSeek. No plugin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from srtkit.spec.attention import AttentionSpec
from srtkit.spec.recurrent import RecurrentSpec
from srtkit_conformance.kits.models.attention import attended
from srtkit_conformance.kits.recurrent.gold import Gold


class Llama:
    """Logits float64 [T, vocab] from a config and stored weights; biases and norms of heads where they are stored."""

    mlp, mlp_norm, last_norm = "mlp", "post_attention_layernorm", "model.norm"

    def __init__(self, keys: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        self._keys = keys
        self._weights = {name: tensor.double() for name, tensor in weights.items()}
        self._size = int(keys["head_dim"])

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Of every token."""
        embedding = self._weights["model.embed_tokens.weight"]
        x = embedding[torch.tensor(list(ids))] * embedding_scale(self._keys)
        for index in range(self._keys["num_hidden_layers"]):
            name = f"model.layers.{index}"
            x = x + self._mixer(self._norm(x, f"{name}.input_layernorm"), name, index)
            x = x + self._mlp(self._norm(x, f"{name}.{self.mlp_norm}"), f"{name}.{self.mlp}")
        head = embedding if self._keys["tie_word_embeddings"] else self._weights["lm_head.weight"]
        return self._norm(x, self.last_norm) @ head.T

    def _mixer(self, x: Tensor, name: str, index: int) -> Tensor:
        return self._attention(x, f"{name}.self_attn", index)

    def _attention(self, x: Tensor, name: str, index: int) -> Tensor:
        spec = self._spec(index)
        q, k, v = (self._linear(x, f"{name}.{part}_proj").view(len(x), -1, self._size) for part in "qkv")
        if f"{name}.q_norm.weight" in self._weights:
            q, k = self._norm(q, f"{name}.q_norm"), self._norm(k, f"{name}.k_norm")
        q, k = self._turned(q, index), self._turned(k, index)
        return self._linear(attended(spec, q, k, v).flatten(1), f"{name}.o_proj")

    def _spec(self, index: int) -> AttentionSpec:
        keys = self._keys
        return AttentionSpec(
            q_heads=keys["num_attention_heads"],
            kv_heads=keys["num_key_value_heads"],
            head_dim=self._size,
            v_head_dim=self._size,
            scale=self._scale(),
            dtype="float64",
            kv_dtype="float64",
            window=self._window(index),
            soft_cap=self._soft_cap(),
        )

    def _scale(self) -> float:
        return float(self._size**-0.5)

    def _soft_cap(self) -> float:
        return 0.0

    def _window(self, index: int) -> int:
        first = self._keys.get("max_window_layers", 0) if self._keys["architectures"][0].startswith("Qwen") else 0
        return self._keys.get("sliding_window", 0) if index >= first else 0

    def _theta(self, index: int) -> float:
        return float(self._keys["rope_theta"])

    def _turned(self, x: Tensor, index: int) -> Tensor:
        """Dimensions i and i + D / 2 of every head as a complex number, turned by position * theta ** (-2 i / D)."""
        half = x.shape[-1] // 2
        speeds = self._theta(index) ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(len(x), dtype=torch.float64), speeds).unsqueeze(1)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), -1)

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        gate, up = self._linear(x, f"{name}.gate_proj"), self._linear(x, f"{name}.up_proj")
        return self._linear(self._act(gate) * up, f"{name}.down_proj")

    def _act(self, x: Tensor) -> Tensor:
        return x * x.sigmoid()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self._shortened(x) * self._weights[f"{name}.weight"]

    def _shortened(self, x: Tensor) -> Tensor:
        """x divided by its root mean square."""
        return x / (x.pow(2).mean(-1, keepdim=True) + float(self._keys["rms_norm_eps"])).sqrt()

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self._weights[f"{name}.weight"].T
        bias = self._weights.get(f"{name}.bias")
        return y if bias is None else y + bias


class Gemma(Llama):
    """Gemma 2 and 3 with the defaults of a config that says nothing of what they have alone."""

    mlp_norm = "pre_feedforward_layernorm"

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Of every token."""
        logits, cap = super().logits(ids), 30.0
        return cap * torch.tanh(logits / cap) if self._second() else logits

    def _second(self) -> bool:
        return bool(self._keys["architectures"][0] == "Gemma2ForCausalLM")

    def _mixer(self, x: Tensor, name: str, index: int) -> Tensor:
        return self._norm(super()._mixer(x, name, index), f"{name}.post_attention_layernorm")

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        return self._norm(super()._mlp(x, name), f"{name.rpartition('.')[0]}.post_feedforward_layernorm")

    def _scale(self) -> float:
        return float(256**-0.5)

    def _soft_cap(self) -> float:
        return 50.0 if self._second() else 0.0

    def _near(self, index: int) -> bool:
        """Whether the layer has a window: every second one, or all but every sixth."""
        return (index + 1) % (2 if self._second() else 6) != 0

    def _window(self, index: int) -> int:
        return self._keys.get("sliding_window", 4096) if self._near(index) else 0

    def _theta(self, index: int) -> float:
        return 10_000.0 if self._near(index) and not self._second() else super()._theta(index)

    def _act(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self._shortened(x) * (1 + self._weights[f"{name}.weight"])


class Bamba(Llama):
    """Mamba2 layers, but for those with attention, which turn half of a head."""

    mlp, mlp_norm, last_norm = "feed_forward", "pre_ff_layernorm", "model.final_layernorm"

    def _mixer(self, x: Tensor, name: str, index: int) -> Tensor:
        attention = index in self._keys["attn_layer_indices"]
        return super()._mixer(x, name, index) if attention else self._mamba(x, f"{name}.mamba")

    def _turned(self, x: Tensor, index: int) -> Tensor:
        half = x.shape[-1] // 2
        return torch.cat((super()._turned(x[..., :half], index), x[..., half:]), -1)

    def _mamba(self, x: Tensor, name: str) -> Tensor:
        keys, weights = self._keys, self._weights
        heads, size = keys["mamba_n_heads"], keys["mamba_d_head"]
        groups, state = keys["mamba_n_groups"], keys["mamba_d_state"]
        channels = heads * size + 2 * groups * state
        width = keys["mamba_d_conv"]
        spec = RecurrentSpec("mamba2", heads, size, state, groups, width, channels, "float64", "float64")
        small = {
            "conv_weight": weights[f"{name}.conv1d.weight"].squeeze(1),
            "conv_bias": weights[f"{name}.conv1d.bias"],
        }
        small |= {"a": -weights[f"{name}.A_log"].exp(), "d": weights[f"{name}.D"]}
        projected = self._linear(x, f"{name}.in_proj")
        gate, xbc, dt = torch.split(projected, [heads * size, channels, heads], 1)
        dt = torch.log1p(torch.exp(dt + weights[f"{name}.dt_bias"]))
        y = Gold(spec, small).advance({"xbc": xbc, "dt": dt}).flatten(1)
        return self._linear(self._norm(y * gate * gate.sigmoid(), f"{name}.norm"), f"{name}.out_proj")


class Deepseek(Llama):
    """Latent attention in full form: keys and values of every head are made of the latents. Every MLP is plain."""

    def _attention(self, x: Tensor, name: str, index: int) -> Tensor:
        keys, heads = self._keys, self._keys["num_attention_heads"]
        nope, rope = keys["qk_nope_head_dim"], keys["qk_rope_head_dim"]
        q = self._linear(self._latent(self._linear(x, f"{name}.q_a_proj"), f"{name}.q_a_layernorm"), f"{name}.q_b_proj")
        q_nope, q_rope = torch.split(q.view(len(x), heads, -1), [nope, rope], -1)
        down, k_rope = torch.split(self._linear(x, f"{name}.kv_a_proj_with_mqa"), [keys["kv_lora_rank"], rope], -1)
        up = self._linear(self._latent(down, f"{name}.kv_a_layernorm"), f"{name}.kv_b_proj").view(len(x), heads, -1)
        k_nope, v = torch.split(up, [nope, keys["v_head_dim"]], -1)
        k_rope = self._turned(k_rope.unsqueeze(1), index).expand(-1, heads, -1)
        q, k = torch.cat((q_nope, self._turned(q_rope, index)), -1), torch.cat((k_nope, k_rope), -1)
        spec = AttentionSpec(heads, heads, nope + rope, v.shape[-1], (nope + rope) ** -0.5, "float64", "float64")
        return self._linear(attended(spec, q, k, v).flatten(1), f"{name}.o_proj")

    def _latent(self, x: Tensor, name: str) -> Tensor:
        """The norm of a latent, which has an epsilon of its own."""
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * self._weights[f"{name}.weight"]

    def _turned(self, x: Tensor, index: int) -> Tensor:
        """Dimensions 2 i and 2 i + 1 as a complex number; they are left where the other families have a pair."""
        return super()._turned(torch.cat((x[..., ::2], x[..., 1::2]), -1), index)


class Mixtral(Llama):
    """Each token goes through the MLPs of the experts that its router finds likeliest, weighted to a sum of 1."""

    mlp, parts = "block_sparse_moe", ("w1", "w3", "w2")

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        return torch.stack([self._mixed(token, name) for token in x])

    def _mixed(self, x: Tensor, name: str) -> Tensor:
        """Of one token, [H]."""
        likely = self._linear(x, f"{name}.gate").softmax(0)
        chosen = likely.argsort(descending=True)[: self._keys["num_experts_per_tok"]].tolist()
        total = likely[chosen].sum() if self._sums_to_one() else 1.0
        return sum((likely[n] / total * self._expert(x, f"{name}.experts.{n}") for n in chosen), torch.zeros_like(x))

    def _sums_to_one(self) -> bool:
        return True

    def _expert(self, x: Tensor, name: str) -> Tensor:
        gate, up, down = self.parts
        inner = self._act(self._linear(x, f"{name}.{gate}")) * self._linear(x, f"{name}.{up}")
        return self._linear(inner, f"{name}.{down}")


class Qwen3Moe(Mixtral):
    """Norms of heads, plain MLPs in some layers, and weights that sum to 1 only where the config says so."""

    mlp, parts = "mlp", ("gate_proj", "up_proj", "down_proj")

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        plain = int(name.split(".")[2]) in self._keys["mlp_only_layers"]
        return Llama._mlp(self, x, name) if plain else super()._mlp(x, name)

    def _sums_to_one(self) -> bool:
        return bool(self._keys.get("norm_topk_prob", False))

    def _window(self, index: int) -> int:
        return int(self._keys.get("sliding_window", 0))


FAMILY: dict[str, type[Llama]] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Llama,
    "Qwen2ForCausalLM": Llama,
    "Qwen3ForCausalLM": Llama,
    "Gemma2ForCausalLM": Gemma,
    "Gemma3ForCausalLM": Gemma,
    "BambaForCausalLM": Bamba,
    "DeepseekV2ForCausalLM": Deepseek,
    "DeepseekV3ForCausalLM": Deepseek,
    "MixtralForCausalLM": Mixtral,
    "Qwen3MoeForCausalLM": Qwen3Moe,
}
"""Formulas by architecture."""


def embedding_scale(keys: Mapping[str, Any]) -> float:
    """What a model multiplies the embeddings of tokens by before its first layer."""
    family = FAMILY.get(keys["architectures"][0], Llama)
    return float(keys["hidden_size"] ** 0.5) if issubclass(family, Gemma) else 1.0
