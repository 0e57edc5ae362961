"""GGUF's tensor names of the Llama family ↔ canonical (Hugging Face) names. Knows no values.

The converter to GGUF interleaves the two halves of every head in the q and k projections of architecture
"llama", to suit its rotary kernel; the Qwen architectures are stored as they are.
"""

from __future__ import annotations

import re

ROPE_FACTORS = "rope_freqs.weight"
"""Not a weight of the model: divisors of the rotary frequencies, which the config expresses."""

OUTPUT = "output.weight"
EMBEDDING = "token_embd.weight"

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>[a-z_]+)\.(?P<leaf>weight|bias)")
_INTERLEAVED = re.compile(r"blk\.\d+\.attn_(?P<which>[qk])\.(?:weight|bias)")


def canonical(name: str) -> str | None:
    """The canonical name of a GGUF tensor; None when it is not one of a dense Llama-like decoder."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    layer, part, leaf = match["layer"], match["part"], match["leaf"]
    if layer is None:
        return f"{_TOP[part]}.{leaf}" if part in _TOP else None
    return f"model.layers.{int(layer)}.{_LAYER[part]}.{leaf}" if part in _LAYER else None


def interleaved_heads(architecture: str, name: str, heads: int, kv_heads: int) -> int:
    """Over how many heads the rows of this tensor are interleaved; 0 when they are stored in order."""
    match = _INTERLEAVED.fullmatch(name) if architecture == "llama" else None
    if match is None:
        return 0
    return heads if match["which"] == "q" else kv_heads
