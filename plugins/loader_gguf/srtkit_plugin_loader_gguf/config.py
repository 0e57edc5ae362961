"""GGUF metadata → a model config with Hugging Face keys. Data only: no numpy, no torch.

What the file states and this loader does not understand is refused, because ignoring it would load a
different model: an unknown architecture, an unknown key of that architecture, an unknown tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from srtkit_plugin_loader_gguf import rope
from srtkit_plugin_loader_gguf.header import damaged, refusal
from srtkit_plugin_loader_gguf.names import EMBEDDING, OUTPUT, ROPE_FACTORS, canonical
from srtkit_plugin_loader_gguf.source import Source

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
"""`general.architecture` → (architecture, model_type). Mistral and SmolLM files are of architecture "llama"."""

PLAIN_TYPES = {0: "float32", 1: "float16", 30: "bfloat16"}
REMEDY = "serve the model from its safetensors folder"

_PLAIN_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_OPTIONAL_KEYS = {
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.causal",
    "vocab_size",
    "tensor_data_layout",
}


class ArchKeys:
    """The `<architecture>.*` keys of one file."""

    def __init__(self, source: Source) -> None:
        """Raises `LoaderError` when the architecture is unknown."""
        self.source = source
        self.architecture = str(source.metadata.get("general.architecture", ""))
        kind = source.metadata.get("general.type", "model")
        if kind != "model":
            raise refusal(source.path, f"is of type {kind!r}, not a model", "name the file of the model")
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise refusal(source.path, f"the architecture {self.architecture!r} is not known (known: {known})", REMEDY)
        prefix = self.architecture + "."
        self.values: Mapping[str, Any] = {
            key.removeprefix(prefix): value for key, value in source.metadata.items() if key.startswith(prefix)
        }

    def number(self, key: str, default: float | None = None) -> Any:
        """A positive number, required unless there is a default. Per-layer arrays are taken when all layers agree."""
        value = self.values.get(key, default)
        if value is None:
            raise refusal(self.source.path, f"the key {self.architecture}.{key} is missing", "convert the model again")
        if isinstance(value, tuple) and value:
            if len(set(value)) != 1:
                raise refusal(self.source.path, f"{self.architecture}.{key} differs between layers", REMEDY)
            value = value[0]
        if not isinstance(value, int | float) or not value > 0:
            raise damaged(self.source.path, f"{self.architecture}.{key} is {value!r}, not a positive number")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """A key that may be absent, as it stands."""
        return self.values.get(key, default)

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Raise for a key outside `known`, unless it is zero, false or empty."""
        unknown = sorted(key for key, value in self.values.items() if value and key not in set(known))
        if unknown:
            names = ", ".join(f"{self.architecture}.{key}" for key in unknown)
            raise refusal(self.source.path, f"the meaning of {names} is not known to this loader", REMEDY)


def model_config(source: Source) -> dict[str, Any]:
    """The config of the model. Raises `LoaderError` naming what is missing or not understood."""
    keys = ArchKeys(source)
    keys.refuse_unknown({*_PLAIN_KEYS, *_OPTIONAL_KEYS, *rope.KEYS})
    _refuse_unknown_tensors(source)
    architecture, model_type = ARCHITECTURES[keys.architecture]
    config: dict[str, Any] = {"architectures": [architecture], "model_type": model_type, "hidden_act": "silu"}
    config |= {name: keys.number(key) for key, name in _PLAIN_KEYS.items()}
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = keys.number("attention.head_count_kv", heads)
    config["head_dim"] = keys.number("attention.key_length", config["hidden_size"] // heads)
    config["vocab_size"] = source.tensors[EMBEDDING][1].shape[0]
    config["tie_word_embeddings"] = OUTPUT not in source.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in source.tensors
    config["mlp_bias"] = "blk.0.ffn_up.bias" in source.tensors
    if keys.number("attention.value_length", config["head_dim"]) != config["head_dim"]:
        raise refusal(source.path, "keys and values have different head sizes", REMEDY)
    if not keys.get("attention.causal", True):
        raise refusal(source.path, "its attention is not causal: it is no text generator", "name another model")
    config["rope_parameters"] = rope.parameters(keys, config["head_dim"])
    return config | token_ids(source) | _dtype(source)


def token_ids(source: Source) -> dict[str, Any]:
    """`bos_token_id`, `pad_token_id`, and `eos_token_id` as the list of all ids that end a text or a turn."""
    tokens = source.metadata.get("tokenizer.ggml.tokens", ())
    ids = {}
    for key in ("bos", "padding", "eos", "eot", "eom"):
        id_ = source.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if id_ is not None and not (isinstance(id_, int) and 0 <= id_ < len(tokens)):
            raise damaged(source.path, f"its {key} token {id_!r} is not among its {len(tokens)} tokens")
        ids[key] = id_
    ends = [ids[key] for key in ("eos", "eot", "eom") if ids[key] is not None]
    return {
        "bos_token_id": ids["bos"],
        "pad_token_id": ids["padding"],
        "eos_token_id": list(dict.fromkeys(ends)),
    }


def _refuse_unknown_tensors(source: Source) -> None:
    unknown = [name for name in source.tensors if name != ROPE_FACTORS and canonical(name) is None]
    if unknown:
        shown = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        raise refusal(source.path, f"the tensors {shown} are not those of a dense decoder", REMEDY)
    if EMBEDDING not in source.tensors:
        raise refusal(source.path, f"the tensor {EMBEDDING} is missing", "fetch or convert the model again")


def _dtype(source: Source) -> dict[str, str]:
    """The dtype of a file whose matrices are all stored plainly and alike; a quantised one has none."""
    types = {entry.type for _, entry in source.tensors.values() if len(entry.shape) > 1}
    return {"dtype": PLAIN_TYPES[types.pop()]} if len(types) == 1 and types <= set(PLAIN_TYPES) else {}
