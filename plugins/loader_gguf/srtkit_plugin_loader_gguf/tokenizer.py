"""GGUF metadata → tokenizer, chat template and generation defaults. Builds no tokenizer before it is asked for."""

from __future__ import annotations

from functools import partial
from typing import Any

from srtkit.spec.tokenizer import TokenizerData
from srtkit_plugin_loader_gguf.config import token_ids
from srtkit_plugin_loader_gguf.header import damaged
from srtkit_plugin_loader_gguf.source import Source
from srtkit_plugin_tokenizer_forms import GgufVocab, from_gguf

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
    bos, eos = ids["bos_token_id"], tuple(ids["eos_token_id"])

    vocab = GgufVocab(
        model=kind,
        pre=ggml.get("pre", ""),
        tokens=tokens,
        token_types=ggml.get("token_type", (_NORMAL,) * len(tokens)),
        scores=ggml.get("scores", ()),
        merges=ggml.get("merges", ()),
        add_space_prefix=ggml.get("add_space_prefix", kind == "llama"),
        bos_id=bos,
        eos_id=eos[0] if eos else None,
        add_bos=ggml.get("add_bos_token"),
        add_eos=ggml.get("add_eos_token"),
    )
    return TokenizerData(partial(from_gguf, vocab), source.metadata.get("tokenizer.chat_template"), bos, eos)


def generation_defaults(source: Source) -> dict[str, Any]:
    """The keys of a generation_config.json that the file states; sampling ones only if its maker set any."""
    found = {name: source.metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()}
    sampling = {name: value for name, value in found.items() if value is not None}
    if sampling:
        sampling["do_sample"] = True
    return {key: value for key, value in token_ids(source).items() if value not in (None, [])} | sampling
