"""GGUF metadata → tokenizer material and generation defaults, as plain data. Builds no tokenizer."""

from __future__ import annotations

from typing import Any

from srtkit.spec.tokenizer import GgufVocab, TokenizerData
from srtkit_plugin_loader_gguf.config import token_ids
from srtkit_plugin_loader_gguf.header import damaged
from srtkit_plugin_loader_gguf.source import Source

_NORMAL = 1
_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}


def tokenizer_data(source: Source) -> TokenizerData | None:
    """The tokenizer of the file; None when it holds none."""
    ggml = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in source.metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    if ggml.get("model", "none") in ("none", "no_vocab"):
        return None
    tokens = ggml.get("tokens")
    if not isinstance(tokens, tuple):
        raise damaged(source.path, "its tokenizer has no tokens")
    kind = str(ggml["model"])
    ids = token_ids(source)
    eos_ids = tuple(ids["eos_token_id"])
    vocab = GgufVocab(
        model=kind,
        pre=ggml.get("pre", ""),
        tokens=tokens,
        token_types=ggml.get("token_type", (_NORMAL,) * len(tokens)),
        scores=ggml.get("scores", ()),
        merges=ggml.get("merges", ()),
        add_space_prefix=ggml.get("add_space_prefix", kind == "llama"),
    )
    return TokenizerData(
        gguf=vocab,
        chat_template=source.metadata.get("tokenizer.chat_template"),
        bos_id=ids["bos_token_id"],
        bos_token="" if ids["bos_token_id"] is None else tokens[ids["bos_token_id"]],
        eos_ids=eos_ids,
        eos_token=tokens[eos_ids[0]] if eos_ids else "",
        add_bos=ggml.get("add_bos_token"),
        add_eos=ggml.get("add_eos_token"),
    )


def generation_defaults(source: Source) -> dict[str, Any]:
    """The keys of a generation_config.json that the file states; sampling ones only if its maker set any."""
    found = {name: source.metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()}
    sampling = {name: value for name, value in found.items() if value is not None}
    if sampling:
        sampling["do_sample"] = True
    return {key: value for key, value in token_ids(source).items() if value not in (None, [])} | sampling
