"""A Hugging Face config, read and checked: what the decoder is made of. Knows no torch, no rank.

Reads the style of transformers 5 (`rope_parameters`, `dtype`) and the older one (`rope_theta`,
`rope_scaling`, `torch_dtype`). What it cannot serve it refuses by the key's name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from srtkit.spec.attention import MlaDims
from srtkit.spec.errors import Unsupported
from srtkit_plugin_models.families import FAMILIES, Family

FULL_LAYER, WINDOW_LAYER = "full_attention", "sliding_attention"
ROPE_KEYS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "yarn": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
}
"""The kinds of rotary embedding, and the keys that each needs."""

EXPERT_KEYS = ("n_shared_experts", "shared_expert_intermediate_size", "n_group", "topk_group")
"""Of mixtures of experts that route or add up otherwise."""


@dataclass(frozen=True)
class RopeConfig:
    """`kind` is one of `ROPE_KEYS`; `parameters` are its other keys, `original_max_position_embeddings` filled in."""

    kind: str
    theta: float
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class MambaConfig:
    """Sizes of a Mamba2 mixer, in the words of `RecurrentSpec`; its steps dt are kept between the two limits."""

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    conv_width: int
    conv_bias: bool
    proj_bias: bool
    dt_limits: tuple[float, float]


@dataclass(frozen=True)
class LatentConfig:
    """Latent attention. `q_rank` is the size of the queries' own latent, 0 where they have none.

    `interleaved`: the two numbers that are rotated together stand side by side, not a half apart.
    """

    dims: MlaDims
    q_rank: int
    interleaved: bool


@dataclass(frozen=True)
class ExpertsConfig:
    """Of `count` experts a token takes `per_token`; `size` is the intermediate size of one.

    `renormalised`: the weights of a token's experts are made to sum to 1.
    """

    count: int
    per_token: int
    size: int
    renormalised: bool


@dataclass(frozen=True)
class LayerConfig:
    """One layer's mixer: Mamba2, or attention over `window` tokens (0: all) with one of the model's `ropes`.

    `experts`: they stand in place of its MLP.
    """

    mamba: bool = False
    window: int = 0
    rope: int = 0
    experts: bool = False


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of the whole model, before it is shared among ranks. What its family always does stands in `family`.

    `scale` multiplies q·k; `activation` is "silu" or "gelu_tanh"; a soft cap of 0 means none; `rotary_dim` is how
    much of a head is rotated. With `latent` a head is as long as a stored entry, and shares it with all others.
    """

    architecture: str
    family: Family
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerConfig, ...]
    q_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    scale: float
    eps: float
    activation: str
    max_context: int
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    soft_cap: float
    logit_cap: float
    ropes: tuple[RopeConfig, ...]
    mamba: MambaConfig | None
    latent: LatentConfig | None
    experts: ExpertsConfig | None


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Raises `Unsupported` naming the key that is missing or asks for what the decoder does not do."""
    architecture, family = _family(config)
    given = {**family.defaults, **config}
    _refuse(architecture, family, given)
    q_heads, hidden = _size(given, "num_attention_heads"), _size(given, "hidden_size")
    kv_heads = given["num_key_value_heads"] or q_heads
    if q_heads % kv_heads:
        raise _unsupported(architecture, "num_key_value_heads", f"{kv_heads} does not divide {q_heads} query heads")
    ropes = _ropes(architecture, family, given)
    attention_bias = "attention_bias" in family.biases and bool(given["attention_bias"])
    latent = _latent(architecture, family, given) if family.latent else None
    head_dim = given["head_dim"] or hidden // q_heads
    rotary_dim = int(head_dim * family.rotary)
    scale = (given.get("query_pre_attn_scalar") or head_dim) ** -0.5
    if latent is not None:
        head_dim, rotary_dim = latent.dims.rank + latent.dims.rope, latent.dims.rope
        scale = _latent_scale(latent.dims, ropes[0])
    caps = {key: float(given.get(key) or 0.0) for key in family.soft_caps}
    return DecoderConfig(
        architecture=architecture,
        family=family,
        dtype=str(given.get("dtype") or given.get("torch_dtype") or "float32").removeprefix("torch."),
        vocab_size=_size(given, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_size(given, "intermediate_size"),
        layers=_layers(architecture, family, given),
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        scale=scale,
        eps=float(given["rms_norm_eps"]),
        activation="silu" if _activation_key(family) == "hidden_act" else "gelu_tanh",
        max_context=_max_context(_size(given, "max_position_embeddings"), ropes[0]),
        tied=bool(given["tie_word_embeddings"]),
        qkv_bias=family.qkv_bias or attention_bias,
        o_bias=attention_bias,
        mlp_bias="mlp_bias" in family.biases and bool(given["mlp_bias"]),
        soft_cap=caps.get("attn_logit_softcapping", 0.0),
        logit_cap=caps.get("final_logit_softcapping", 0.0),
        ropes=ropes,
        mamba=_mamba(architecture, given, hidden) if family.mamba else None,
        latent=latent,
        experts=_experts(architecture, family, given) if family.expert_size else None,
    )


def _family(config: Mapping[str, Any]) -> tuple[str, Family]:
    names = list(config.get("architectures") or ())
    for name in names:
        if name in FAMILIES:
            return name, FAMILIES[name]
    raise _unsupported("models", "architectures", f"{names} is none of {', '.join(sorted(FAMILIES))}")


def _activation_key(family: Family) -> str:
    """The key that names the activation. A family that reads "hidden_activation" does not read the other."""
    return "hidden_activation" if "hidden_activation" in family.defaults else "hidden_act"


def _refuse(architecture: str, family: Family, given: Mapping[str, Any]) -> None:
    """What would change the numbers and is not done."""
    key = _activation_key(family)
    served = "silu" if key == "hidden_act" else "gelu_pytorch_tanh"
    if given[key] != served:
        raise _unsupported(architecture, key, f"{given[key]!r} is not served, only {served!r}")
    if given.get("quantization_config"):
        raise _unsupported(architecture, "quantization_config", "quantised weights are not served")
    if given.get("use_bidirectional_attention"):
        raise _unsupported(architecture, "use_bidirectional_attention", "only causal attention is served")
    if given.get("partial_rotary_factor") not in (None, family.rotary):
        raise _unsupported(architecture, "partial_rotary_factor", f"{family.rotary} of a head is rotated")
    if family.windows == "none" and given["sliding_window"]:
        raise _unsupported(architecture, "sliding_window", "this architecture has no windows")
    if family.windows != "by_layer" and given.get("layer_types") and not family.mamba:
        raise _unsupported(architecture, "layer_types", "all layers of this architecture are alike")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if given.get(key) and key not in family.soft_caps:
            raise _unsupported(architecture, key, "this architecture has no such cap")
    for key in () if family.latent else EXPERT_KEYS:  # which may be given where no layer has experts
        if given.get(key):
            raise _unsupported(architecture, key, "shared experts, and experts in groups, are not served")
    for key in ("attention_bias", "mlp_bias"):
        if given[key] and key not in family.biases:
            raise _unsupported(architecture, key, "this architecture has no such bias")


def _ropes(architecture: str, family: Family, given: Mapping[str, Any]) -> tuple[RopeConfig, ...]:
    """The rotary embedding; where window layers have one of their own that is the second."""
    if not family.local_theta:
        return (_read_rope(architecture, family, given),)
    both = given.get("rope_parameters") or {}
    if not both.keys() <= {FULL_LAYER, WINDOW_LAYER}:
        raise _unsupported(architecture, "rope_parameters", f"wants a table each for {FULL_LAYER} and {WINDOW_LAYER}")
    full = {**given, "rope_parameters": both.get(FULL_LAYER)}
    theta = given.get("rope_local_base_freq") or family.local_theta
    local = {**given, "rope_parameters": both.get(WINDOW_LAYER), "rope_scaling": None, "rope_theta": theta}
    return tuple(_read_rope(architecture, family, one) for one in (full, local))


def _read_rope(architecture: str, family: Family, given: Mapping[str, Any]) -> RopeConfig:
    """The rotary embedding in either style; scaling of the old style goes before, as in transformers."""
    old, new = given.get("rope_scaling"), given.get("rope_parameters")
    if old and new and dict(old) != dict(new):
        raise _unsupported(architecture, "rope_scaling", "differs from rope_parameters, which is given too")
    parameters = dict(old or new or {})
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise _unsupported(architecture, "rope_parameters", "one rotary embedding for each layer type is not served")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in ROPE_KEYS:
        raise _unsupported(architecture, "rope_type", f"{kind!r} is none of {', '.join(sorted(ROPE_KEYS))}")
    for key in sorted(ROPE_KEYS[kind]):
        if parameters.get(key) is None:
            raise _unsupported(architecture, f"rope_parameters.{key}", f"is missing for rope_type {kind!r}")
    if parameters.get("partial_rotary_factor") not in (None, family.rotary):
        cause = f"{family.rotary} of a head is rotated"
        raise _unsupported(architecture, "rope_parameters.partial_rotary_factor", cause)
    theta = parameters.get("rope_theta") or given.get("rope_theta") or family.theta
    original = given.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
    parameters["original_max_position_embeddings"] = original or given["max_position_embeddings"]
    rest = {key: value for key, value in parameters.items() if key not in ("rope_theta", "rope_type", "type")}
    return RopeConfig(kind, float(theta), rest)


def _max_context(positions: int, rope: RopeConfig) -> int:
    """Tokens of the longest sequence. Only yarn states by itself how far it reaches beyond `positions`.

    "dynamic" could go further, but there its frequencies depend on the longest sequence of a batch.
    """
    if rope.kind == "yarn":
        original = rope.parameters["original_max_position_embeddings"]
        return max(positions, int(original * rope.parameters["factor"]))
    return positions


def _layers(architecture: str, family: Family, given: Mapping[str, Any]) -> tuple[LayerConfig, ...]:
    count = _size(given, "num_hidden_layers")
    if family.mamba:
        attention = set(given["attn_layer_indices"] or ())
        if not attention <= set(range(count)):
            raise _unsupported(architecture, "attn_layer_indices", f"{sorted(attention)} is not within {count} layers")
        return tuple(LayerConfig(mamba=index not in attention) for index in range(count))
    local = 1 if family.local_theta else 0
    windows, experts = _windows(architecture, family, given, count), _sparse(architecture, family, given, count)
    return tuple(
        LayerConfig(window=window, rope=local if windowed else 0, experts=sparse)
        for (windowed, window), sparse in zip(windows, experts, strict=True)
    )


def _sparse(architecture: str, family: Family, given: Mapping[str, Any], count: int) -> list[bool]:
    """Of each layer whether it has experts: every `decoder_sparse_step`-th, but for those of `mlp_only_layers`."""
    if "decoder_sparse_step" not in family.defaults:
        return [bool(family.expert_size)] * count
    step, dense = _size(given, "decoder_sparse_step"), given["mlp_only_layers"] or ()
    if not set(dense) <= set(range(count)):
        raise _unsupported(architecture, "mlp_only_layers", f"{sorted(dense)} is not within {count} layers")
    return [(index + 1) % step == 0 and index not in dense for index in range(count)]


def _windows(architecture: str, family: Family, given: Mapping[str, Any], count: int) -> list[tuple[bool, int]]:
    """Of each layer whether it is one of those with windows, and its window, 0 for all tokens."""
    window = given["sliding_window"] or 0
    if family.windows == "none":
        return [(False, 0)] * count
    if "use_sliding_window" in family.defaults and not given["use_sliding_window"]:
        window = 0
    if family.windows == "all":
        return [(True, window)] * count
    kinds = given["layer_types"]
    if kinds is not None:
        if len(kinds) != count or not {FULL_LAYER, WINDOW_LAYER} >= set(kinds):
            known = f"{FULL_LAYER}, {WINDOW_LAYER}"
            raise _unsupported(architecture, "layer_types", f"wants {count} entries, each one of {known}")
        windowed = [kind == WINDOW_LAYER for kind in kinds]
    elif "sliding_window_pattern" in family.defaults:
        pattern = _size(given, "sliding_window_pattern")
        windowed = [(index + 1) % pattern != 0 for index in range(count)]
    else:
        windowed = [index >= given["max_window_layers"] for index in range(count)]
    return [(one, window if one else 0) for one in windowed]


def _mamba(architecture: str, given: Mapping[str, Any], hidden: int) -> MambaConfig:
    heads, groups, expand = (_size(given, f"mamba_{key}") for key in ("n_heads", "n_groups", "expand"))
    inner = expand * hidden
    head_dim = inner // heads if given["mamba_d_head"] == "auto" else _size(given, "mamba_d_head")
    if heads * head_dim != inner:
        raise _unsupported(architecture, "mamba_n_heads", f"{heads} heads of {head_dim} do not make {inner} channels")
    if heads % groups:
        raise _unsupported(architecture, "mamba_n_groups", f"{groups} does not divide {heads} heads")
    low, high = map(_float, given["time_step_limit"] or (0.0, float("inf")))
    return MambaConfig(
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state_dim=_size(given, "mamba_d_state"),
        conv_width=_size(given, "mamba_d_conv"),
        conv_bias=bool(given["mamba_conv_bias"]),
        proj_bias=bool(given["mamba_proj_bias"]),
        dt_limits=(low, high),
    )


def _latent(architecture: str, family: Family, given: Mapping[str, Any]) -> LatentConfig:
    layers, dense = _size(given, "num_hidden_layers"), given["first_k_dense_replace"] or 0
    if dense < layers:
        cause = f"layers from {dense} on are mixtures of experts, which are not served"
        raise _unsupported(architecture, "first_k_dense_replace", cause)
    if given["num_key_value_heads"] not in (None, given["num_attention_heads"]):
        raise _unsupported(architecture, "num_key_value_heads", "every head has keys of its own in this architecture")
    dims = MlaDims(
        rank=_size(given, "kv_lora_rank"),
        rope=_size(given, "qk_rope_head_dim"),
        nope=_size(given, "qk_nope_head_dim"),
        v_head_dim=_size(given, "v_head_dim"),
    )
    q_rank = 0 if given["q_lora_rank"] is None else _size(given, "q_lora_rank")
    interleaved = "rope_interleave" not in family.defaults or bool(given["rope_interleave"])
    return LatentConfig(dims, q_rank, interleaved)


def _latent_scale(dims: MlaDims, rope: RopeConfig) -> float:
    """That of heads in their full form. Of parts that are not rotated, too, q and k are multiplied by yarn's factor."""
    weight = rope.parameters.get("mscale_all_dim")
    factor = mscale(rope.parameters["factor"], weight) if rope.kind != "default" and weight else 1.0
    return float((dims.nope + dims.rope) ** -0.5 * factor**2)


def mscale(factor: float, weight: float = 1.0) -> float:
    """What yarn multiplies queries and keys by for a context that is `factor` times as long."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _experts(architecture: str, family: Family, given: Mapping[str, Any]) -> ExpertsConfig:
    """Their number is `num_experts` where Qwen publishes, `num_local_experts` elsewhere and in transformers 5."""
    count = _size(given, "num_local_experts" if given.get("num_local_experts") else "num_experts")
    per_token = _size(given, "num_experts_per_tok")
    if per_token > count:
        raise _unsupported(architecture, "num_experts_per_tok", f"{per_token} is more than {count} experts")
    renormalised = "norm_topk_prob" not in family.defaults or bool(given["norm_topk_prob"])
    return ExpertsConfig(count, per_token, _size(given, family.expert_size), renormalised)


def _float(value: Any) -> float:
    """A number; transformers writes an infinite one as {"__float__": "Infinity"}, which JSON has no other form for."""
    return float(value["__float__"] if isinstance(value, Mapping) else value)


def _size(given: Mapping[str, Any], key: str) -> int:
    value = given.get(key)
    if not isinstance(value, int) or value <= 0:
        raise _unsupported("models", key, f"wants a positive number, found {value!r}")
    return value


def _unsupported(architecture: str, key: str, reason: str) -> Unsupported:
    return Unsupported(f"models:{architecture}", f"config key {key}: {reason}", "serve another model")
