"""The vocabulary of a GGUF file as tokenizer.json. Knows the format's names for pre-tokenizers."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from srtkit.spec.errors import LoaderError, Unsupported
from srtkit_plugin_tokenizer_forms.finish import if_wanted, to_json
from srtkit_plugin_tokenizer_forms.sentencepiece import SpmModel, build_spm, special_tokens

_PART = "tokenizer:gguf"
_REMEDY = "serve the model from its safetensors folder, which has a tokenizer.json"


@dataclass(frozen=True)
class GgufVocab:
    """The `tokenizer.ggml.*` keys of a GGUF file, unchanged; position in `tokens` is the token id.

    `model` is the tokenizer's kind ("gpt2": byte-level BPE, "llama": SentencePiece BPE), `pre` the name of the
    pre-tokenizer ("" when the file names none), `token_types` GGUF's numbers (1 normal, 2 unknown, 3 control,
    4 user defined, 5 unused, 6 byte). "gpt2" needs `merges` ("left right"), "llama" needs `scores`. `add_bos` and
    `add_eos` are what the file says outright; None leaves it to the tokenizer's family.
    """

    model: str
    pre: str
    tokens: tuple[str, ...]
    token_types: tuple[int, ...]
    scores: tuple[float, ...] = ()
    merges: tuple[str, ...] = ()
    add_space_prefix: bool = True
    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool | None = None
    add_eos: bool | None = None


@dataclass(frozen=True)
class _Scheme:
    """How a family of byte-level BPE tokenizers prepares text, as its published tokenizer.json has it.

    `splits` are applied one after the other; none means GPT-2's own expression. `whole_words` takes a word that
    is a token as it is, without merging up to it. `add_bos` is the default when the file does not say.
    """

    splits: tuple[str, ...] = ()
    single_digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CL100K = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_REST}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_SYMBOLS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
_TEKKEN = rf"{_CASED % ('', '')}|\p{{N}}|{_SYMBOLS}"
_O200K = rf"{_CASED % (_CONTRACTION + '?', _CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_SYMBOLS}"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_REST}",
)

_SCHEMES: dict[str, _Scheme] = {
    **dict.fromkeys(("gpt-2", "default", "phi-2"), _Scheme()),
    **dict.fromkeys(("olmo", "mpt"), _Scheme(nfc=True)),
    **dict.fromkeys(("smollm", "starcoder", "refact"), _Scheme(single_digits=True)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "lfm2"), _Scheme((_CL100K,), whole_words=True, add_bos=True)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _Scheme((_CL100K,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _Scheme((_QWEN2,), nfc=True)),
    "qwen35": _Scheme((_QWEN35,), nfc=True),
    "tekken": _Scheme((_TEKKEN,), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), _Scheme((_O200K,))),
    "deepseek-v3": _Scheme(_DEEPSEEK3),
}


def from_gguf(vocab: GgufVocab) -> str:
    """The text of tokenizer.json.

    Raises `LoaderError` for a damaged vocabulary, `Unsupported` for an unknown kind or pre-tokenizer.
    """
    sizes = {len(vocab.tokens), len(set(vocab.tokens)), len(vocab.token_types)}
    if vocab.model == "llama":
        sizes.add(len(vocab.scores))
    if len(sizes) > 1:
        raise LoaderError(_PART, "tokens repeat, or have no type or score each", "convert the model again")
    match vocab.model:
        case "gpt2":
            scheme = _scheme(vocab.pre)
            backend, begins = _byte_level(vocab, scheme), scheme.add_bos
        case "llama":
            model = SpmModel(vocab.tokens, vocab.scores, vocab.token_types, add_prefix=vocab.add_space_prefix)
            backend, begins = build_spm(model), True
        case other:
            raise Unsupported(_PART, f"tokenizer model {other!r} is not known (known: gpt2, llama)", _REMEDY)
    bos = if_wanted("BOS", vocab.bos_id, vocab.add_bos, begins)
    eos = if_wanted("EOS", vocab.eos_id, vocab.add_eos, False)
    return to_json(backend, special_tokens(vocab.tokens, vocab.token_types), bos, eos)


def _scheme(pre: str) -> _Scheme:
    if pre not in _SCHEMES:
        cause = f"pre-tokenizer {pre!r} is not known" if pre else "the file does not name its pre-tokenizer"
        raise Unsupported(_PART, f"{cause} (known: {', '.join(sorted(_SCHEMES))})", _REMEDY)
    return _SCHEMES[pre]


def _byte_level(vocab: GgufVocab, scheme: _Scheme) -> Backend:
    ids = {token: id_ for id_, token in enumerate(vocab.tokens)}
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocab.merges)]
    for left, right in merges:
        if left not in ids or right not in ids or left + right not in ids:
            raise LoaderError(_PART, f"merge {left!r} + {right!r} does not fit its tokens", "convert the model again")
    backend = Backend(models.BPE(ids, merges, ignore_merges=scheme.whole_words))
    if scheme.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(split), behavior="isolated") for split in scheme.splits
    ]
    if scheme.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not scheme.splits))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend
