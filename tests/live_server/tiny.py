"""A tiny random Llama in float32, as a model folder, and settings files that serve it: ready in seconds.

Greedy texts of it are printable ASCII, because the rows of its LM head for other tokens are zero. Made with
numpy, so that making it imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTEXT = 2048
PAGE = 16
VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, MLP = 300, 64, 2, 4, 2, 128
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 256,
    "torch_dtype": "float32",
}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def make_model(folder: Path) -> Path:
    """Write config, tokenizer (a token is a byte), chat template and weights into `folder`, which it returns."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    _tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    save_file(_weights(), folder / "model.safetensors")
    return folder


def _tokenizer() -> Tokenizer:
    """Every byte is a token; "!" to "~" are the ids 0 to 93. The model has more ids than it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: id_ for id_, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<|end|>", normalized=False, special=True)])
    return tokenizer


def _weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(20)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(0, 1 / np.sqrt(shape[-1]), shape).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": normal(VOCABULARY, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": 8 * normal(VOCABULARY, HIDDEN),
    }
    weights["lm_head.weight"][94:] = 0
    head = HIDDEN // HEADS
    shapes = {
        "self_attn.q_proj": (HEADS * head, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * head, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * head, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * head),
        "mlp.gate_proj": (MLP, HIDDEN),
        "mlp.up_proj": (MLP, HIDDEN),
        "mlp.down_proj": (HIDDEN, MLP),
    }
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            weights[f"model.layers.{layer}.{name}.weight"] = 2 * normal(*shape)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
    return weights


def write_config(file: Path, model: Path, tables: Mapping[str, str] | None = None) -> Path:
    """A settings file for the model; `tables` are further lines by table name."""
    lines = {
        "model": f'source = "{model}"\nname = "tiny"\ndtype = "float32"',
        "platform": 'use = "cpu"\n[platform.options]\nthreads = 1',
        "memory": "kv_gib = 0.03",
    }
    for table, more in (tables or {}).items():
        lines[table] = "\n".join(filter(None, (lines.get(table), more)))
    file.write_text("\n".join(f"[{table}]\n{text}\n" for table, text in lines.items()))
    return file
