"""Byte-level vocabularies of GGUF files: pre-tokenizers, special tokens, BOS, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from srtkit.spec.errors import LoaderError, Unsupported
from srtkit_plugin_tokenizer_forms import GgufVocab, from_gguf

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


@pytest.mark.parametrize(
    ("vocab", "cause"),
    [
        (GgufVocab("gpt2", "gpt-2", ("a", "a"), (1, 1)), "repeat"),
        (GgufVocab("gpt2", "gpt-2", ("a", "b"), (1,)), "type"),
        (GgufVocab("gpt2", "gpt-2", ("a", "b"), (1, 1), merges=("a b",)), "merge 'a' . 'b' does not fit"),
        (GgufVocab("gpt2", "gpt-2", ("a",), (1,), add_bos=True), "asks for a BOS token but names none"),
    ],
)
def test_a_broken_vocabulary_is_reported(vocab: GgufVocab, cause: str) -> None:
    with pytest.raises(LoaderError, match=cause):
        from_gguf(vocab)


@pytest.mark.parametrize(
    ("model", "pre", "cause"),
    [
        ("gpt2", "bloom", "pre-tokenizer 'bloom' is not known"),
        ("gpt2", "", "does not name its pre-tokenizer"),
        ("rwkv", "", "tokenizer model 'rwkv' is not known"),
    ],
)
def test_unknown_gguf_kinds_are_refused_by_name(model: str, pre: str, cause: str) -> None:
    with pytest.raises(Unsupported, match=cause):
        from_gguf(GgufVocab(model, pre, ("a",), (1,)))


def built(vocab: GgufVocab) -> Tokenizer:
    return Tokenizer.from_str(from_gguf(vocab))


def gguf(pre: str, text: str, **fields: Any) -> Tokenizer:
    """A vocabulary in which any two neighbours of `text` merge, so that only the pre-tokenizer keeps them apart."""
    [(chars, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    spans = {chars[i:j] for i in range(len(chars)) for j in range(i + 2, len(chars) + 1)}
    joined = sorted(spans - {*ALPHABET}, key=len)
    merges = tuple(f"{token[:cut]} {token[cut:]}" for token in joined for cut in range(1, len(token)))
    tokens = (*ALPHABET, *joined, "<|end|>", "<tool>")
    kinds = (1,) * (len(tokens) - 2) + (3, 4)
    return built(GgufVocab("gpt2", pre, tokens, kinds, merges=merges, bos_id=len(tokens) - 2, **fields))


SAMPLE = "I'm I'M camelCase  2024 x\n\n ¿qué? a/b.\n"


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", SAMPLE, "I|'m| I|'|M| camelCase| | 2024| x|\n\n| ¿|qué|?| a|/|b|.|\n"),
        ("smollm", SAMPLE, "I|'m| I|'|M| camelCase|  |2|0|2|4| x|\n\n| ¿|qué|?| a|/|b|.|\n"),
        ("llama-bpe", SAMPLE, "I|'m| I|'M| camelCase| | |202|4| x|\n\n| ¿|qué|?| a|/b|.\n"),
        ("dbrx", SAMPLE, "I|'m| I|'M| camelCase| | |202|4| x|\n\n| ¿|qué|?| a|/b|.\n"),
        ("qwen2", SAMPLE, "I|'m| I|'M| camelCase| | |2|0|2|4| x|\n\n| ¿|qué|?| a|/b|.\n"),
        ("qwen2", "ab\u0301c de", "ab|\u0301c| de"),
        ("qwen35", "ab\u0301c de", "ab\u0301c| de"),
        ("tekken", SAMPLE, "I|'m| I|'M| camel|Case| | |2|0|2|4| x|\n\n| ¿|qué|?| a|/b|.\n"),
        ("gpt-4o", SAMPLE, "I'm| I'M| camel|Case| | |202|4| x|\n\n| ¿|qué|?| a|/b|.\n"),
        ("deepseek-v3", "1234 漢字かなab !ok x:y\n", "123|4| |漢字かな|ab| !|ok| x|:y|\n"),
    ],
)
def test_pre_tokenizers_cut_as_their_models_do(pre: str, text: str, expected: str) -> None:
    tokenizer = gguf(pre, text)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert "|".join(tokenizer.decode([id_]) for id_ in ids) == expected
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(("pre", "count"), [("llama-bpe", 1), ("tekken", 1), ("gpt-2", 2)])
def test_whole_words_are_found_where_the_family_looks_for_them(pre: str, count: int) -> None:
    tokens = (*ALPHABET, "hi")
    assert len(built(GgufVocab("gpt2", pre, tokens, (1,) * 257)).encode("hi").ids) == count


def test_qwen_composes_characters() -> None:
    tokenizer = gguf("qwen2", "x")
    assert tokenizer.decode(tokenizer.encode("e\u0301").ids) == "é"


@pytest.mark.parametrize(("pre", "begins"), [("llama-bpe", True), ("tekken", True), ("gpt-2", False), ("qwen2", False)])
def test_a_gguf_that_does_not_speak_of_bos_gets_that_of_its_family(pre: str, begins: bool) -> None:
    x = ALPHABET.index("x")
    assert gguf(pre, "x").encode("x").ids == ([256, x] if begins else [x])
    assert gguf(pre, "x", add_bos=True).encode("x").ids == [256, x]
    assert gguf(pre, "x", add_bos=False, eos_id=257, add_eos=True).encode("x").ids == [x, 257]


def test_control_tokens_are_special_and_user_defined_ones_are_text() -> None:
    tokenizer = gguf("gpt-2", "x")
    ids = tokenizer.encode("<tool>x<|end|>").ids
    assert len(ids) == 3
    assert tokenizer.decode(ids) == "<tool>x"
