"""The decoder of all families: one class, differences as data. Built from the shared layers of the contract.

Knows no backend, no cache and no loader. What stands between those layers is plain classes: reading an
attribute of a torch module takes 1 µs, and a step does it 300 times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srtkit.spec.attention import AttentionSpec, Rotation
from srtkit.spec.errors import Unsupported
from srtkit.spec.layers import DTYPES, Embedding, Head, Linear, PagedAttention, RMSNorm
from srtkit.spec.models import Model, ModelBuild, ModelInputs, ModelOutput
from srtkit_plugin_models.config import DecoderConfig, read_config
from srtkit_plugin_models.experts import Experts
from srtkit_plugin_models.mamba import Mamba
from srtkit_plugin_models.mla import LatentAttention
from srtkit_plugin_models.rope import rope_tables

Owner = Linear | RMSNorm | Embedding | Head
"""What may hold a parameter of the weight map."""
Angles = tuple[Tensor, Tensor]
"""cos and sin [T, 1, rotary_dim] of the tokens' positions."""


class OffsetNorm(RMSNorm):
    """A norm that is stored as the difference of its weight to 1; `pack` makes the weight."""

    def __init__(self, build: ModelBuild, size: int, eps: float) -> None:
        super().__init__(build.ops, size, eps, build.plan.dtype, build.device)
        self.stored = torch.empty_like(self.weight)

    def pack(self) -> None:
        """After loading."""
        torch.add(self.stored, 1.0, out=self.weight)


def _norm(build: ModelBuild, config: DecoderConfig, size: int) -> RMSNorm:
    if config.family.offset_norms:
        return OffsetNorm(build, size, config.eps)
    return RMSNorm(build.ops, size, config.eps, build.plan.dtype, build.device)


class Attention:
    """Fused qkv, optional norms of q and k, rotation, attention over stored KV, output projection."""

    def __init__(self, build: ModelBuild, config: DecoderConfig, spec: AttentionSpec, index: int) -> None:
        heads, self.head_dim = spec.q_heads + 2 * spec.kv_heads, spec.head_dim
        self.parts = (spec.q_heads, spec.kv_heads, spec.kv_heads)
        self.qkv = Linear(build, (heads * spec.head_dim, config.hidden_size), bias=config.qkv_bias)
        inputs = spec.q_heads * spec.head_dim
        self.o_proj = Linear(build, (config.hidden_size, inputs), bias=config.o_bias, reduce=True)
        self.q_norm = self.k_norm = None
        if config.family.qk_norm:
            self.q_norm = _norm(build, config, spec.head_dim)
            self.k_norm = _norm(build, config, spec.head_dim)
            self.norm_rope = build.ops.op("norm_rope", build.plan.dtype, head_dim=spec.head_dim)
        else:
            self.rope = build.ops.op("rope", build.plan.dtype, head_dim=spec.head_dim, rotary=config.rotary_dim)
        self.eps = config.eps
        self.attention = PagedAttention(spec, index)

    def owners(self) -> dict[str, Owner | None]:
        """Its parts that hold parameters, by their names in the layer."""
        return {
            "self_attn.qkv": self.qkv,
            "self_attn.o_proj": self.o_proj,
            "self_attn.q_norm": self.q_norm,
            "self_attn.k_norm": self.k_norm,
        }

    def bare(self) -> dict[str, Tensor]:
        """It has no other parameters."""
        return {}

    def __call__(self, x: Tensor, angles: Angles) -> Tensor:
        """[T, hidden] → [T, hidden]."""
        tokens = x.shape[0]
        q, k, v = self.qkv(x).view(tokens, -1, self.head_dim).split_with_sizes(self.parts, 1)
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = self.q_norm.weight, self.k_norm.weight, self.eps
        if self.attention.store_rotated(q, k, v, Rotation(*angles, norms)):
            attended = self.attention(q, None, None)
        else:
            if norms is None:
                self.rope(q, k, *angles)
            else:
                self.norm_rope(q, k, *norms[:2], *angles, self.eps)
            attended = self.attention(q, k, v)
        out: Tensor = self.o_proj(attended.view(tokens, -1))
        return out


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """[T, 2 I] → [T, I]; gelu(gate) * up, gelu by its approximation with tanh. No operator of the contract yet."""
    gate, up = gate_up.chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * up


class MLP:
    """down(act(gate(x)) * up(x)), gate and up in one linear."""

    def __init__(self, build: ModelBuild, config: DecoderConfig) -> None:
        inner = config.intermediate_size // build.shard.world
        self.gate_up = Linear(build, (2 * inner, config.hidden_size), bias=config.mlp_bias)
        self.down_proj = Linear(build, (config.hidden_size, inner), bias=config.mlp_bias, reduce=True)
        silu = config.activation == "silu"
        self.act_mul = build.ops.op("silu_mul", build.plan.dtype, hidden=inner) if silu else gelu_tanh_mul

    def owners(self) -> dict[str, Linear]:
        """Its linears, by their names in it."""
        return {"gate_up": self.gate_up, "down_proj": self.down_proj}

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] → [T, hidden]."""
        out: Tensor = self.down_proj(self.act_mul(self.gate_up(x)))
        return out


class DecoderLayer:
    """Mixer and MLP or experts, each followed by its add to the residual and the norm before what comes next.

    `next_norm` is therefore the next layer's input norm, or the model's last norm. Where the family has them,
    the two `post` norms are of an output, before it is added.
    """

    def __init__(self, build: ModelBuild, config: DecoderConfig, index: int) -> None:
        self.mixer: Attention | LatentAttention | Mamba
        if config.mamba is not None and config.layers[index].mamba:
            self.mixer = Mamba(build, config, config.mamba, index)
        elif config.latent is not None:
            self.mixer = LatentAttention(build, config, config.latent, index)
        else:
            self.mixer = Attention(build, config, build.plan.attention[index], index)
        names, size = config.family.names, config.hidden_size
        self.mixer_post_norm = _norm(build, config, size) if names.mixer_post_norm else None
        self.norm = _norm(build, config, size)
        self.mlp: MLP | Experts
        if config.experts is not None and config.layers[index].experts:
            self.mlp = Experts(build, config.hidden_size, config.experts)
        else:
            self.mlp = MLP(build, config)
        self.mlp_post_norm = _norm(build, config, size) if names.mlp_post_norm else None
        self.next_norm = _norm(build, config, size)

    def __call__(self, x: Tensor, residual: Tensor, angles: Angles) -> Tensor:
        """x [T, hidden] comes and goes normalised; `residual` [T, hidden] grows by both outputs, in place."""
        x = self.mixer(x, angles)
        if self.mixer_post_norm is not None:
            x = self.mixer_post_norm(x)
        x = self.mlp(self.norm.add(x, residual))
        if self.mlp_post_norm is not None:
            x = self.mlp_post_norm(x)
        return self.next_norm.add(x, residual)


class Decoder(nn.Module, Model):
    """Embedding, layers, head. `ModelOutput.hidden` is after the last norm; a tap is the residual after its layer."""

    def __init__(self, build: ModelBuild) -> None:
        super().__init__()
        config, plan = read_config(build.config), build.plan
        self.plan, self.config, self.device, self.taps = plan, config, build.device, frozenset(build.taps)
        dtype = DTYPES[plan.dtype]
        self.embed_tokens = Embedding(build)
        self.embed_scale: Tensor | None = None
        if config.family.scaled_embedding:
            self.embed_scale = torch.tensor(config.hidden_size**0.5, dtype=dtype, device=build.device)
        self.first_norm = _norm(build, config, config.hidden_size)
        self.layers = [DecoderLayer(build, config, index) for index in range(len(config.layers))]
        self.rope_of = [layer.rope for layer in config.layers]
        self.lm_head = Head(build, self.embed_tokens if config.tied else None)
        tables = [rope_tables(rope, config.rotary_dim, plan.max_context, dtype) for rope in config.ropes]
        self.tables = [(cos.to(build.device), sin.to(build.device)) for cos, sin in tables]

    def run(self, inputs: ModelInputs) -> ModelOutput:
        """See the contract. Raises `Unsupported` for hidden states of an earlier stage."""
        if inputs.hidden is not None:
            raise Unsupported(f"models:{self.plan.architecture}", "is one stage and takes no hidden states of another")
        residual = self._embed(inputs)
        positions = inputs.positions[0]
        rotations = [(cos.index_select(0, positions), sin.index_select(0, positions)) for cos, sin in self.tables]
        taps: dict[int, Tensor] = {}
        x = self.first_norm(residual)
        for index, layer in enumerate(self.layers):
            x = layer(x, residual, rotations[self.rope_of[index]])
            if index in self.taps:
                taps[index] = residual.clone()
        logits = self.lm_head(x.index_select(0, inputs.logit_rows))
        if cap := self.config.logit_cap:
            logits = torch.tanh(logits.float() / cap) * cap
        return ModelOutput(logits, x, taps)

    def _embed(self, inputs: ModelInputs) -> Tensor:
        """The tokens' embeddings as the first layer takes them, those under the mask replaced; a fresh tensor."""
        embedded: Tensor = self.embed_tokens(inputs.ids)
        if self.embed_scale is not None:
            embedded = embedded.mul_(self.embed_scale)
        if inputs.embeds is None or inputs.embed_mask is None:
            return embedded
        return torch.where(inputs.embed_mask.unsqueeze(1), inputs.embeds, embedded)

    def slots(self) -> Mapping[str, Tensor]:
        """See the contract. Allocates again what `pack` dropped."""
        owners, bare = self._owners(), self._bare()
        slots: dict[str, Tensor] = {}
        for entry in self.plan.weights:
            if entry.tied_to:
                continue
            name = entry.parameter
            slots[name] = bare[name] if name in bare else self._tensor(owners, name, entry.shape)
        return slots

    def _tensor(self, owners: Mapping[str, Owner], name: str, shape: Sequence[int]) -> Tensor:
        """Where a parameter of an owner is loaded to."""
        base, _, kind = name.rpartition(".")
        owner = owners[base]
        if isinstance(owner, OffsetNorm):
            return owner.stored
        tensor = owner.bias if isinstance(owner, Linear) and kind == "bias" else owner.weight
        if tensor is None:
            tensor = owner.weight = torch.empty(shape, dtype=DTYPES[self.plan.dtype], device=self.device)
        return tensor

    def pack(self) -> None:
        """See the contract."""
        for owner in self._owners().values():
            if isinstance(owner, Linear | Head | OffsetNorm):
                owner.pack()
        for layer in self.layers:
            if isinstance(layer.mlp, Experts):
                layer.mlp.pack()
        for mixer in self._recurrent().values():
            mixer.pack()

    def recurrent_weights(self) -> Mapping[int, Mapping[str, Tensor]]:
        """See the contract."""
        return {index: mixer.weights for index, mixer in self._recurrent().items()}

    def _recurrent(self) -> dict[int, Mamba]:
        """The recurrent mixers, by layer."""
        return {index: layer.mixer for index, layer in enumerate(self.layers) if isinstance(layer.mixer, Mamba)}

    def _bare(self) -> dict[str, Tensor]:
        """Parameters that are no linear and no norm, by their names in the weight map."""
        bare = {
            f"model.layers.{index}.{name}": tensor
            for index, layer in enumerate(self.layers)
            for name, tensor in layer.mixer.bare().items()
        }
        for index, layer in enumerate(self.layers):
            if isinstance(layer.mlp, Experts):
                name = f"model.layers.{index}.{self.config.family.names.mlp}"
                bare |= {f"{name}.{part}": tensor for part, tensor in layer.mlp.parameters().items()}
        return bare

    def _owners(self) -> dict[str, Owner]:
        """Who holds the other parameters, by the names of the weight map without ".weight" and ".bias"."""
        names = self.config.family.names
        owners: dict[str, Owner] = {
            "model.embed_tokens": self.embed_tokens,
            "model.layers.0.input_layernorm": self.first_norm,
            "lm_head": self.lm_head,
        }
        for index, layer in enumerate(self.layers):
            name, last = f"model.layers.{index}", index + 1 == len(self.layers)
            owners |= {
                f"{name}.{names.mlp_norm}": layer.norm,
                names.last_norm if last else f"model.layers.{index + 1}.input_layernorm": layer.next_norm,
            }
            optional: dict[str, Owner | None] = {
                names.mixer_post_norm: layer.mixer_post_norm,
                names.mlp_post_norm: layer.mlp_post_norm,
            }
            optional |= layer.mixer.owners()
            optional |= {f"{names.mlp}.{part}": linear for part, linear in layer.mlp.owners().items()}
            owners |= {f"{name}.{part}": owner for part, owner in optional.items() if owner is not None}
        return owners
