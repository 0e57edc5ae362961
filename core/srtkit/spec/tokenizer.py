"""Tokenizer material as plain data: what a model loader found, before anything is built from it.

A loader fills `TokenizerData`; `srtkit.text` builds the tokenizer and the chat template from it.
Knows no tokenizer library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class GgufVocab:
    """The `tokenizer.ggml.*` keys of a GGUF file, unchanged; position in `tokens` is the token id.

    `model` is the tokenizer's kind ("gpt2": byte-level BPE, "llama": SentencePiece BPE), `pre` the name of the
    pre-tokenizer ("" when the file names none), `token_types` GGUF's numbers (1 normal, 2 unknown, 3 control,
    4 user defined, 5 unused, 6 byte). "gpt2" needs `merges` ("left right"), "llama" needs `scores`.
    """

    model: str
    pre: str
    tokens: tuple[str, ...]
    token_types: tuple[int, ...]
    scores: tuple[float, ...] = ()
    merges: tuple[str, ...] = ()
    add_space_prefix: bool = True


@dataclass(frozen=True)
class TokenizerData:
    """One model's tokenizer. Of `json`, `gguf` and `spm` the first that is set is used.

    `json` is the text of tokenizer.json, `spm` the bytes of tokenizer.model, `config` the content of
    tokenizer_config.json (`added_tokens_decoder`, `legacy` and `add_prefix_space` are read from it).
    `add_bos` and `add_eos` hold what the source says outright; None leaves it to the tokenizer's own form
    (the post-processor of tokenizer.json; BOS for SentencePiece). `eos_ids` are all ids that end a text.
    A BOS or EOS may be given as id, as text or both. `chat_template` is Jinja source.
    """

    json: str | None = None
    gguf: GgufVocab | None = None
    spm: bytes | None = None
    chat_template: str | None = None
    bos_id: int | None = None
    bos_token: str = ""
    eos_ids: tuple[int, ...] = ()
    eos_token: str = ""
    add_bos: bool | None = None
    add_eos: bool | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
