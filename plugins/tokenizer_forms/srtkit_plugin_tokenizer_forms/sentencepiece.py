"""A SentencePiece vocabulary as tokenizer.json: tokenizer.model, or the same material out of a GGUF file.

Knows the ModelProto wire format and SentencePiece's rules. BPE and unigram, with or without byte fallback.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from srtkit.spec.errors import LoaderError, Unsupported
from srtkit_plugin_tokenizer_forms.finish import add_listed, if_wanted, to_json

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_UNIGRAM, _BPE = 1, 2
_PART = "tokenizer:sentencepiece"


@dataclass(frozen=True)
class SpmModel:
    """A vocabulary (position is the id) and the switches that matter for encoding.

    `prefix_first_only`: the space put before a text is not repeated after special tokens inside it.
    """

    pieces: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    unigram: bool = False
    add_prefix: bool = True
    prefix_first_only: bool = False
    collapse_spaces: bool = False
    charsmap: bytes = b""


def from_sentencepiece(
    model: bytes, config: Mapping[str, Any], bos: int | str | None = None, eos: int | str | None = None
) -> str:
    """The text of tokenizer.json for the bytes of a tokenizer.model.

    `config` is the content of tokenizer_config.json: its prefix settings (`add_prefix_space`, `legacy`) win, and
    `added_tokens_decoder`, `add_bos_token` (by default yes) and `add_eos_token` (no) are followed. `bos` and `eos`
    are ids or texts. Raises `LoaderError` for damage or contradiction, `Unsupported` for word and character models.
    """
    parsed = parse_spm(model, config)
    tokenizer = build_spm(parsed)
    # Those of the config first: the library keeps the flags of whoever adds a token first, and theirs are complete.
    add_listed(tokenizer, config.get("added_tokens_decoder") or {})
    special = special_tokens(parsed.pieces, parsed.types)
    bos, eos = (tokenizer.token_to_id(token) if isinstance(token, str) else token for token in (bos, eos))
    bos = if_wanted("BOS", bos, config.get("add_bos_token"), True)
    return to_json(tokenizer, special, bos, if_wanted("EOS", eos, config.get("add_eos_token"), False))


def parse_spm(data: bytes, config: Mapping[str, Any]) -> SpmModel:
    """Read a tokenizer.model. `config` is tokenizer_config.json, whose prefix settings win.

    Raises `LoaderError` when the bytes are no ModelProto, `Unsupported` for word and character models.
    """
    try:
        model = _fields(data)
        pieces = [_fields(piece) for piece in model[1]]
        texts = [bytes(piece[1][-1]).decode() for piece in pieces]
        trainer, normalizer = _fields(model[2][-1]), _fields(model[3][-1])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise LoaderError(_PART, f"tokenizer.model is damaged ({error!r})", "fetch the file again") from error
    types = [_last(piece, 3, NORMAL) for piece in pieces]
    kind, suffix_spaces = _last(trainer, 3, _UNIGRAM), _last(trainer, 24, 0)
    if kind not in (_UNIGRAM, _BPE) or suffix_spaces or (kind == _UNIGRAM and UNUSED in types):
        cause = "word and character models, spaces as suffixes and unused unigram pieces are not supported"
        raise Unsupported(_PART, cause, "serve the model with its tokenizer.json")
    prefix = config.get("add_prefix_space")
    return SpmModel(
        pieces=texts,
        scores=[_last(piece, 2, 0.0) for piece in pieces],
        types=types,
        unigram=kind == _UNIGRAM,
        add_prefix=bool(_last(normalizer, 3, 1) if prefix is None else prefix),
        prefix_first_only=config.get("legacy") is False,
        collapse_spaces=bool(_last(normalizer, 4, 1)),
        charsmap=bytes(_last(normalizer, 2, b"")),
    )


def _fields(data: bytes | memoryview) -> dict[int, list[Any]]:
    """The fields of one protobuf message by number; nested messages and strings stay bytes."""
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = divmod(tag, 8)
        if wire == 0:
            value, at = _varint(data, at)
            found[number].append(value)
            continue
        size, at = _varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
        chunk = memoryview(data)[at : at + size]
        if len(chunk) < size:
            raise ValueError("a field is cut off")
        found[number].append(struct.unpack("<f", chunk)[0] if wire == 5 else chunk)
        at += size
    return found


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    return value | byte << shift, at + 1


def _last(fields: dict[int, list[Any]], number: int, default: Any) -> Any:
    values = fields.get(number)
    return values[-1] if values else default


def build_spm(model: SpmModel) -> Backend:
    """A tokenizer that gives SentencePiece's ids, `special_tokens` not added yet. Raises `LoaderError` if damaged."""
    byte_tokens = BYTE in model.types
    try:
        backend = Backend(_unigram(model, byte_tokens) if model.unigram else _bpe(model, byte_tokens))
        charsmap = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    except Exception as error:  # the library raises plain Exception
        raise LoaderError(_PART, f"the vocabulary is damaged: {error}", "fetch the file again") from error
    steps: list[normalizers.Normalizer] = [*charsmap]
    if model.collapse_spaces:
        steps += [normalizers.Replace(Regex(r"\A +"), ""), normalizers.Replace(Regex(" +"), " ")]
    steps.append(normalizers.Replace(" ", "▁"))
    if model.collapse_spaces:
        steps.append(normalizers.Replace(Regex(r"▁+\z"), ""))
    cuts: list[pre_tokenizers.PreTokenizer] = []
    if model.add_prefix and model.prefix_first_only:
        cuts.append(pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False))
    elif model.add_prefix:
        steps.append(normalizers.Prepend("▁"))
    if model.unigram and byte_tokens:
        # Unigram would find a byte token in the text "<0x41>"; SentencePiece reads those six characters.
        cuts.append(pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), behavior="isolated"))
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    strip = [decoders.Strip(" ", 1, 0)] if model.add_prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def special_tokens(pieces: Sequence[str], types: Sequence[int]) -> list[AddedToken]:
    """The pieces that are found in a text as they are, before it is tokenized; all but user-defined are special."""
    return [
        AddedToken(piece, normalized=False, special=kind != USER_DEFINED)
        for piece, kind in zip(pieces, types, strict=True)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]


def _bpe(model: SpmModel, byte_tokens: bool) -> models.BPE:
    """SentencePiece merges the pair whose joined piece scores best; as a ranked list: by score, all cuts of a piece."""
    scores = {p: s for p, s, kind in zip(model.pieces, model.scores, model.types, strict=True) if kind == NORMAL}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(scores, key=scores.__getitem__, reverse=True)
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    vocab = {piece: id_ for id_, piece in enumerate(model.pieces)}
    unknown = model.pieces[model.types.index(UNKNOWN)] if UNKNOWN in model.types else None
    return models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=byte_tokens)


def _unigram(model: SpmModel, byte_tokens: bool) -> models.Unigram:
    vocab = list(zip(model.pieces, model.scores, strict=True))
    return models.Unigram(vocab, unk_id=model.types.index(UNKNOWN), byte_fallback=byte_tokens)
