"""What the model needs, as data: sizes from the config, attention specs, the weight map. No torch.

The weight map ties each parameter of `decoder` to the stored names it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from srtkit.spec.attention import AttentionSpec
from srtkit.spec.errors import Unsupported
from srtkit.spec.models import ModelPlan, PlanRequest, WeightEntry

ARCHITECTURE = "MyPluginForCausalLM"
PART = f"models:{ARCHITECTURE}"


@dataclass(frozen=True)
class Sizes:
    """The config's figures."""

    vocab: int
    hidden: int
    inner: int
    layers: int
    q_heads: int
    kv_heads: int
    max_context: int
    eps: float
    theta: float

    @property
    def head_dim(self) -> int:
        """Size of one head."""
        return self.hidden // self.q_heads


def read_sizes(config: Mapping[str, Any]) -> Sizes:
    """Raises `Unsupported` naming the config key that is missing or does not fit."""
    try:
        sizes = Sizes(
            vocab=int(config["vocab_size"]),
            hidden=int(config["hidden_size"]),
            inner=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            q_heads=int(config["num_attention_heads"]),
            kv_heads=int(config["num_key_value_heads"]),
            max_context=int(config["max_position_embeddings"]),
            eps=float(config["rms_norm_eps"]),
            theta=float(config["rope_theta"]),
        )
    except KeyError as error:
        raise Unsupported(PART, f"config key {error} is missing", "serve a model of this architecture") from None
    if sizes.hidden % sizes.q_heads or sizes.q_heads % sizes.kv_heads:
        figures = f"{sizes.hidden}, {sizes.q_heads}, {sizes.kv_heads}"
        cause = f"config keys hidden_size, num_attention_heads, num_key_value_heads: {figures} do not divide"
        raise Unsupported(PART, cause, "serve a model of this architecture")
    return sizes


def plan(request: PlanRequest) -> ModelPlan:
    """Raises `Unsupported` for a config that does not fit, and for more than one rank."""
    sizes = read_sizes(request.config)
    if request.shard.world > 1:
        raise Unsupported(PART, "is not split over ranks", "set parallel.tensor = 1")
    spec = AttentionSpec(
        q_heads=sizes.q_heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        v_head_dim=sizes.head_dim,
        scale=sizes.head_dim**-0.5,
        dtype=request.dtype,
        kv_dtype=request.kv_dtype,
    )
    return ModelPlan(
        architecture=ARCHITECTURE,
        dtype=request.dtype,
        vocab_size=sizes.vocab,
        hidden_size=sizes.hidden,
        max_context=sizes.max_context,
        attention=dict.fromkeys(range(sizes.layers), spec),
        weights=tuple(_weights(sizes, request.dtype)),
        intermediate_size=sizes.inner,
    )


def _weights(sizes: Sizes, dtype: str) -> Iterator[WeightEntry]:
    """The weight map, in the order of use."""
    hidden, q_rows, kv_rows = sizes.hidden, sizes.q_heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim

    def entry(parameter: str, *shape: int) -> WeightEntry:
        return WeightEntry(parameter, shape, dtype, (parameter,), (shape,))

    def fused(parameter: str, parts: dict[str, int], columns: int) -> WeightEntry:
        """A linear made of stored `parts` (name → rows), one below the other."""
        base = parameter.removesuffix(".weight").rpartition(".")[0]
        sources = tuple(f"{base}.{part}.weight" for part in parts)
        shapes = tuple((rows, columns) for rows in parts.values())
        return WeightEntry(parameter, (sum(parts.values()), columns), dtype, sources, shapes)

    yield entry("model.embed_tokens.weight", sizes.vocab, hidden)
    for index in range(sizes.layers):
        block = f"model.layers.{index}"
        qkv = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
        yield entry(f"{block}.input_layernorm.weight", hidden)
        yield fused(f"{block}.self_attn.qkv.weight", qkv, hidden)
        yield entry(f"{block}.self_attn.o_proj.weight", hidden, q_rows)
        yield entry(f"{block}.post_attention_layernorm.weight", hidden)
        yield fused(f"{block}.mlp.gate_up.weight", {"gate_proj": sizes.inner, "up_proj": sizes.inner}, hidden)
        yield entry(f"{block}.mlp.down_proj.weight", hidden, sizes.inner)
    yield entry("model.norm.weight", hidden)
    yield entry("lm_head.weight", sizes.vocab, hidden)
