"""Tokenizers from tokenizer.json and from byte-level GGUF vocabularies: BOS, special tokens, pre-tokenizers, errors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from srtkit.spec.errors import ConfigError, LoaderError, Unsupported
from srtkit.spec.tokenizer import GgufVocab, TokenizerData
from srtkit.text.tokenizer import build_tokenizer

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def tokenizer_json(writes_bos: bool = True) -> str:
    """A byte-level tokenizer.json with <s> (256) and </s> (257); 'h' is token of its byte."""
    backend = Backend(models.BPE({char: id_ for id_, char in enumerate(ALPHABET)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens([AddedToken("<think>", special=False)])
    if writes_bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    return backend.to_str()


def data(writes_bos: bool = True, **fields: Any) -> TokenizerData:
    return TokenizerData(json=tokenizer_json(writes_bos), bos_token="<s>", eos_token="</s>", **fields)


HI = [ALPHABET.index("h"), ALPHABET.index("i")]


@pytest.mark.parametrize(
    ("writes_bos", "add_bos", "add_eos", "expected"),
    [
        (True, None, None, [256, *HI]),
        (False, None, None, HI),
        (True, True, None, [256, *HI]),
        (False, True, None, [256, *HI]),
        (True, False, None, HI),
        (False, False, True, [*HI, 257]),
        (True, True, True, [256, *HI, 257]),
    ],
)
def test_bos_and_eos_are_written_once(
    writes_bos: bool, add_bos: bool | None, add_eos: bool | None, expected: list[int]
) -> None:
    tokenizer = build_tokenizer(data(writes_bos, add_bos=add_bos, add_eos=add_eos))
    assert tokenizer.encode("hi") == expected
    assert tokenizer.encode("hi", add_special=False) == HI
    if expected[0] == 256:
        assert tokenizer.encode("<s>hi") == expected
    if expected[-1] == 257:
        assert tokenizer.encode("hi</s>") == expected
    assert tokenizer.encode("hi" * 100, add_special=False) == HI * 100


def test_a_vocabulary_without_latin_letters_has_its_bos() -> None:
    backend = Backend(models.BPE({"1": 0, "2": 1}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    assert build_tokenizer(TokenizerData(json=backend.to_str())).encode("21") == [2, 1, 0]


def test_a_token_may_be_given_as_id_or_as_text() -> None:
    by_text = build_tokenizer(data())
    by_id = build_tokenizer(TokenizerData(json=tokenizer_json(), bos_id=256, eos_ids=(257, 3)))
    assert (by_text.bos_id, by_text.bos_token, by_text.eos_ids, by_text.eos_token) == (256, "<s>", (257,), "</s>")
    assert (by_id.bos_id, by_id.bos_token, by_id.eos_ids, by_id.eos_token) == (256, "<s>", (257, 3), "</s>")
    assert by_text.special_ids == {256, 257}
    assert by_id.special_ids == {256, 257, 3}


def test_tokens_have_text_and_bytes() -> None:
    tokenizer = build_tokenizer(data())
    ids = tokenizer.encode("é<think></s>", add_special=False)
    assert [tokenizer.token_bytes(id_) for id_ in ids] == [b"\xc3", b"\xa9", b"<think>", b"</s>"]
    assert [tokenizer.token_text(id_) for id_ in ids] == ["\ufffd", "\ufffd", "<think>", "</s>"]
    assert tokenizer.decode(ids) == "é<think>"
    assert tokenizer.decode(ids, skip_special=False) == "é<think></s>"
    assert tokenizer.vocab_size == 259
    assert tokenizer.token_text(259) == tokenizer.decode([259]) == ""


def test_tokens_of_tokenizer_config_are_added() -> None:
    listed = {"259": {"content": "<call>", "special": True}, "256": {"content": "<s>", "special": True}}
    tokenizer = build_tokenizer(data(config={"added_tokens_decoder": listed}))
    assert tokenizer.encode("<call>", add_special=False) == [259]
    assert 259 in tokenizer.special_ids


def test_half_a_surrogate_pair_is_an_error_of_the_request() -> None:
    with pytest.raises(ConfigError, match="surrogate"):
        build_tokenizer(data()).encode("\ud83d")


@pytest.mark.parametrize(
    ("broken", "cause"),
    [
        (TokenizerData(), "no tokenizer"),
        (TokenizerData(json="{"), "cannot be read"),
        (TokenizerData(json=tokenizer_json(), add_bos=True), "asks for a BOS token"),
        (TokenizerData(gguf=GgufVocab("gpt2", "gpt-2", ("a", "a"), (1, 1))), "repeat"),
        (TokenizerData(gguf=GgufVocab("gpt2", "gpt-2", ("a", "b"), (1,))), "type"),
        (
            TokenizerData(gguf=GgufVocab("gpt2", "gpt-2", ("a", "b"), (1, 1), merges=("a b",))),
            "merge 'a' . 'b' does not fit",
        ),
    ],
)
def test_a_broken_source_is_reported(broken: TokenizerData, cause: str) -> None:
    with pytest.raises(LoaderError, match=cause):
        build_tokenizer(broken)


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
        build_tokenizer(TokenizerData(gguf=GgufVocab(model, pre, ("a",), (1,))))


def gguf(pre: str, text: str) -> TokenizerData:
    """A vocabulary in which any two neighbours of `text` merge, so that only the pre-tokenizer keeps them apart."""
    [(chars, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    spans = {chars[i:j] for i in range(len(chars)) for j in range(i + 2, len(chars) + 1)}
    joined = sorted(spans - {*ALPHABET}, key=len)
    merges = tuple(f"{token[:cut]} {token[cut:]}" for token in joined for cut in range(1, len(token)))
    tokens = (*ALPHABET, *joined, "<|end|>", "<tool>")
    kinds = (1,) * (len(tokens) - 2) + (3, 4)
    return TokenizerData(gguf=GgufVocab("gpt2", pre, tokens, kinds, merges=merges), bos_id=len(tokens) - 2)


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
    tokenizer = build_tokenizer(gguf(pre, text))
    ids = tokenizer.encode(text, add_special=False)
    assert "|".join(map(tokenizer.token_text, ids)) == expected
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(("pre", "count"), [("llama-bpe", 1), ("tekken", 1), ("gpt-2", 2)])
def test_whole_words_are_found_where_the_family_looks_for_them(pre: str, count: int) -> None:
    tokens = (*ALPHABET, "hi")
    tokenizer = build_tokenizer(TokenizerData(gguf=GgufVocab("gpt2", pre, tokens, (1,) * 257)))
    assert len(tokenizer.encode("hi")) == count


def test_qwen_composes_characters() -> None:
    tokenizer = build_tokenizer(gguf("qwen2", "x"))
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "é"


@pytest.mark.parametrize(("pre", "begins"), [("llama-bpe", True), ("tekken", True), ("gpt-2", False), ("qwen2", False)])
def test_a_gguf_that_does_not_speak_of_bos_gets_that_of_its_family(pre: str, begins: bool) -> None:
    tokenizer = build_tokenizer(gguf(pre, "x"))
    assert (tokenizer.encode("x")[0] == tokenizer.bos_id) is begins


def test_control_tokens_are_special_and_user_defined_ones_are_text() -> None:
    tokenizer = build_tokenizer(gguf("gpt-2", "x"))
    ids = tokenizer.encode("<tool>x<|end|>")
    assert len(ids) == 3
    assert tokenizer.decode(ids) == "<tool>x"


def test_the_text_stage_imports_no_model_library() -> None:
    code = (
        "import sys, srtkit.text.chat, srtkit.text.detokenizer, srtkit.text.stop, srtkit.text.tokenizer; "
        "print({'torch', 'transformers', 'sentencepiece', 'gguf'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
