"""The decoder of the Llama family: Llama, Mistral, Qwen2, Qwen3. One class, differences as data.

Built from the shared layers of the contract. Knows no backend, no cache and no loader. What stands between
those layers is plain classes: reading an attribute of a torch module takes 1 µs, and a step does it 300 times.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from srtkit.spec.attention import AttentionSpec
from srtkit.spec.errors import Unsupported
from srtkit.spec.layers import DTYPES, Embedding, Head, Linear, PagedAttention, RMSNorm
from srtkit.spec.models import Model, ModelBuild, ModelInputs, ModelOutput
from srtkit_plugin_models.config import DecoderConfig, read_config
from srtkit_plugin_models.rope import rope_tables

Owner = Linear | RMSNorm | Embedding | Head
"""What may hold a parameter of the weight map."""


class Attention:
    """Fused qkv, optional norms of q and k, rotation, attention over stored KV, output projection."""

    def __init__(self, build: ModelBuild, config: DecoderConfig, spec: AttentionSpec, index: int) -> None:
        heads, self.head_dim = spec.q_heads + 2 * spec.kv_heads, spec.head_dim
        self.parts = (spec.q_heads, spec.kv_heads, spec.kv_heads)
        self.qkv = Linear(build, (heads * spec.head_dim, config.hidden_size), bias=config.qkv_bias)
        inputs = spec.q_heads * spec.head_dim
        self.o_proj = Linear(build, (config.hidden_size, inputs), bias=config.o_bias, reduce=True)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = RMSNorm(build.ops, spec.head_dim, config.eps, build.plan.dtype, build.device)
            self.k_norm = RMSNorm(build.ops, spec.head_dim, config.eps, build.plan.dtype, build.device)
        self.rope = build.ops.op("rope", build.plan.dtype, head_dim=spec.head_dim, rotary=spec.head_dim)
        self.attention = PagedAttention(spec, index)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [T, hidden] → [T, hidden]; cos and sin [T, 1, head_dim] of the tokens' positions."""
        tokens = x.shape[0]
        q, k, v = self.qkv(x).view(tokens, -1, self.head_dim).split_with_sizes(self.parts, 1)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q.reshape(-1, self.head_dim)).view(tokens, -1, self.head_dim)
            k = self.k_norm(k.reshape(-1, self.head_dim)).view(tokens, -1, self.head_dim)
        self.rope(q, k, cos, sin)
        out: Tensor = self.o_proj(self.attention(q, k, v).view(tokens, -1))
        return out


class MLP:
    """down(silu(gate(x)) * up(x)), gate and up in one linear."""

    def __init__(self, build: ModelBuild, config: DecoderConfig) -> None:
        inner = build.plan.intermediate_size
        self.gate_up = Linear(build, (2 * inner, config.hidden_size), bias=config.mlp_bias)
        self.down_proj = Linear(build, (config.hidden_size, inner), bias=config.mlp_bias, reduce=True)
        self.silu_mul = build.ops.op("silu_mul", build.plan.dtype, hidden=inner)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] → [T, hidden]."""
        out: Tensor = self.down_proj(self.silu_mul(self.gate_up(x)))
        return out


class DecoderLayer:
    """Attention and MLP, each followed by its add to the residual and the norm before what comes next.

    `next_norm` is therefore the next layer's input norm, or the model's last norm.
    """

    def __init__(self, build: ModelBuild, config: DecoderConfig, index: int) -> None:
        self.self_attn = Attention(build, config, build.plan.attention[index], index)
        self.norm = RMSNorm(build.ops, config.hidden_size, config.eps, build.plan.dtype, build.device)
        self.mlp = MLP(build, config)
        self.next_norm = RMSNorm(build.ops, config.hidden_size, config.eps, build.plan.dtype, build.device)

    def __call__(self, x: Tensor, residual: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [T, hidden] comes and goes normalised; `residual` [T, hidden] grows by both outputs, in place."""
        x = self.norm.add(self.self_attn(x, cos, sin), residual)
        return self.next_norm.add(self.mlp(x), residual)


class Decoder(nn.Module, Model):
    """Embedding, layers, head. `ModelOutput.hidden` is after the last norm; a tap is the residual after its layer."""

    def __init__(self, build: ModelBuild) -> None:
        super().__init__()
        config, plan = read_config(build.config), build.plan
        self.plan, self.device, self.taps = plan, build.device, frozenset(build.taps)
        self.embed_tokens = Embedding(build)
        self.first_norm = RMSNorm(build.ops, config.hidden_size, config.eps, plan.dtype, build.device)
        self.layers = [DecoderLayer(build, config, index) for index in range(config.layers)]
        self.lm_head = Head(build, self.embed_tokens if config.tied else None)
        tables = rope_tables(config.rope, config.head_dim, plan.max_context, DTYPES[plan.dtype])
        self.cos, self.sin = (table.to(build.device) for table in tables)

    def run(self, inputs: ModelInputs) -> ModelOutput:
        """See the contract. Raises `Unsupported` for hidden states of an earlier stage."""
        if inputs.hidden is not None:
            raise Unsupported(f"models:{self.plan.architecture}", "is one stage and takes no hidden states of another")
        residual = self._embed(inputs)
        positions = inputs.positions[0]
        cos, sin = self.cos.index_select(0, positions), self.sin.index_select(0, positions)
        taps: dict[int, Tensor] = {}
        x = self.first_norm(residual)
        for index, layer in enumerate(self.layers):
            x = layer(x, residual, cos, sin)
            if index in self.taps:
                taps[index] = residual.clone()
        return ModelOutput(self.lm_head(x.index_select(0, inputs.logit_rows)), x, taps)

    def _embed(self, inputs: ModelInputs) -> Tensor:
        """The tokens' embeddings, those under the mask replaced; a fresh tensor."""
        embedded: Tensor = self.embed_tokens(inputs.ids)
        if inputs.embeds is None or inputs.embed_mask is None:
            return embedded
        return torch.where(inputs.embed_mask.unsqueeze(1), inputs.embeds, embedded)

    def slots(self) -> Mapping[str, Tensor]:
        """See the contract. Allocates again what `pack` dropped."""
        owners = self._owners()
        slots: dict[str, Tensor] = {}
        for entry in self.plan.weights:
            if entry.tied_to:
                continue
            base, _, kind = entry.parameter.rpartition(".")
            owner = owners[base]
            tensor = owner.bias if isinstance(owner, Linear) and kind == "bias" else owner.weight
            if tensor is None:
                tensor = owner.weight = torch.empty(entry.shape, dtype=DTYPES[entry.dtype], device=self.device)
            slots[entry.parameter] = tensor
        return slots

    def pack(self) -> None:
        """See the contract."""
        for owner in self._owners().values():
            if isinstance(owner, Linear | Head):
                owner.pack()

    def _owners(self) -> dict[str, Owner]:
        """Who holds the parameters, by the names of the weight map without ".weight" and ".bias"."""
        owners: dict[str, Owner] = {
            "model.embed_tokens": self.embed_tokens,
            "model.layers.0.input_layernorm": self.first_norm,
            "lm_head": self.lm_head,
        }
        for index, layer in enumerate(self.layers):
            name, last = f"model.layers.{index}", index + 1 == len(self.layers)
            attention = layer.self_attn
            owners |= {
                f"{name}.self_attn.qkv": attention.qkv,
                f"{name}.self_attn.o_proj": attention.o_proj,
                f"{name}.post_attention_layernorm": layer.norm,
                f"{name}.mlp.gate_up": layer.mlp.gate_up,
                f"{name}.mlp.down_proj": layer.mlp.down_proj,
                "model.norm" if last else f"model.layers.{index + 1}.input_layernorm": layer.next_norm,
            }
            if attention.q_norm is not None and attention.k_norm is not None:
                owners |= {f"{name}.self_attn.q_norm": attention.q_norm, f"{name}.self_attn.k_norm": attention.k_norm}
        return owners
