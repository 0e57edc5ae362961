"""A Hugging Face config, read and checked: what the decoder is made of. Knows no torch, no rank.

Reads the style of transformers 5 (`rope_parameters`, `dtype`) and the older one (`rope_theta`,
`rope_scaling`, `torch_dtype`). What it cannot serve it refuses by the key's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from srtkit.spec.errors import Unsupported
from srtkit_plugin_models.families import FAMILIES, Family

# The value of `default_theta` in transformers for every family here.
DEFAULT_THETA = 10_000.0
ROPE_KEYS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "yarn": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
}
"""The kinds of rotary embedding, and the keys that each needs."""


@dataclass(frozen=True)
class RopeConfig:
    """`kind` is one of `ROPE_KEYS`; `parameters` are its other keys, `original_max_position_embeddings` filled in."""

    kind: str
    theta: float
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of the whole model, before it is shared among ranks. `windows` has one entry a layer, 0: none."""

    architecture: str
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    eps: float
    max_context: int
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int, ...]
    rope: RopeConfig


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Raises `Unsupported` naming the key that is missing or asks for what the decoder does not do."""
    architecture, family = _family(config)
    given = {**family.defaults, **config}
    _refuse(architecture, family, given)
    q_heads, hidden = _size(given, "num_attention_heads"), _size(given, "hidden_size")
    kv_heads = given["num_key_value_heads"] or q_heads
    if q_heads % kv_heads:
        raise _unsupported(architecture, "num_key_value_heads", f"{kv_heads} does not divide {q_heads} query heads")
    layers = _size(given, "num_hidden_layers")
    rope = _read_rope(architecture, given)
    attention_bias = "attention_bias" in family.biases and bool(given["attention_bias"])
    return DecoderConfig(
        architecture=architecture,
        dtype=str(given.get("dtype") or given.get("torch_dtype") or "float32").removeprefix("torch."),
        vocab_size=_size(given, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_size(given, "intermediate_size"),
        layers=layers,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=given["head_dim"] or hidden // q_heads,
        eps=float(given["rms_norm_eps"]),
        max_context=_max_context(_size(given, "max_position_embeddings"), rope),
        tied=bool(given["tie_word_embeddings"]),
        qkv_bias=family.qkv_bias or attention_bias,
        o_bias=attention_bias,
        mlp_bias="mlp_bias" in family.biases and bool(given["mlp_bias"]),
        qk_norm=family.qk_norm,
        windows=_windows(architecture, family, given, layers),
        rope=rope,
    )


def _family(config: Mapping[str, Any]) -> tuple[str, Family]:
    names = list(config.get("architectures") or ())
    for name in names:
        if name in FAMILIES:
            return name, FAMILIES[name]
    raise _unsupported("models", "architectures", f"{names} is none of {', '.join(sorted(FAMILIES))}")


def _refuse(architecture: str, family: Family, given: Mapping[str, Any]) -> None:
    """What would change the numbers and is not done."""
    if given["hidden_act"] != "silu":
        raise _unsupported(architecture, "hidden_act", f"{given['hidden_act']!r} is not served, only 'silu'")
    if given.get("quantization_config"):
        raise _unsupported(architecture, "quantization_config", "quantised weights are not served")
    if given.get("partial_rotary_factor") not in (None, 1.0):
        raise _unsupported(architecture, "partial_rotary_factor", "the whole head is rotated")
    if family.windows == "none" and given["sliding_window"]:
        raise _unsupported(architecture, "sliding_window", "this architecture has no windows")
    if family.windows != "by_layer" and given.get("layer_types"):
        raise _unsupported(architecture, "layer_types", "all layers of this architecture are alike")
    for key in ("attention_bias", "mlp_bias"):
        if given[key] and key not in family.biases:
            raise _unsupported(architecture, key, "this architecture has no such bias")


def _read_rope(architecture: str, given: Mapping[str, Any]) -> RopeConfig:
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
    if parameters.get("partial_rotary_factor") not in (None, 1.0):
        raise _unsupported(architecture, "rope_parameters.partial_rotary_factor", "the whole head is rotated")
    theta = parameters.get("rope_theta") or given.get("rope_theta") or DEFAULT_THETA
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


def _windows(architecture: str, family: Family, given: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The window of each layer, 0 for all tokens."""
    window = given["sliding_window"] or 0
    if family.windows == "none" or not window:
        return (0,) * layers
    if family.windows == "all":
        return (window,) * layers
    kinds = given["layer_types"]
    if kinds is None:
        first = given["max_window_layers"] if given["use_sliding_window"] else layers
        return tuple(window if index >= first else 0 for index in range(layers))
    known = {"full_attention": 0, "sliding_attention": window if given["use_sliding_window"] else 0}
    if len(kinds) != layers or not known.keys() >= set(kinds):
        raise _unsupported(architecture, "layer_types", f"wants {layers} entries, each one of {', '.join(known)}")
    return tuple(known[kind] for kind in kinds)


def _size(given: Mapping[str, Any], key: str) -> int:
    value = given.get(key)
    if not isinstance(value, int) or value <= 0:
        raise _unsupported("models", key, f"wants a positive number, found {value!r}")
    return value


def _unsupported(architecture: str, key: str, reason: str) -> Unsupported:
    return Unsupported(f"models:{architecture}", f"config key {key}: {reason}", "serve another model")
