"""Tokenizers from tokenizer.json: BOS and EOS, special tokens, bytes, errors."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from srtkit.spec.errors import ConfigError, LoaderError
from srtkit.spec.tokenizer import TokenizerData
from srtkit.text.tokenizer import Tokenizer

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def data(template: str | None = "<s> $A", **fields: Any) -> TokenizerData:
    """A byte-level tokenizer.json with <s> (256), </s> (257) and <think>, which is no special token."""
    backend = Backend(models.BPE({char: id_ for id_, char in enumerate(ALPHABET)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens([AddedToken("<think>", special=False)])
    if template is not None:
        ends = [("<s>", 256), ("</s>", 257)]
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    return TokenizerData(backend.to_str, **({"bos": "<s>", "eos": ("</s>",)} | fields))


HI = [ALPHABET.index("h"), ALPHABET.index("i")]


@pytest.mark.parametrize(
    ("template", "expected"),
    [(None, HI), ("<s> $A", [256, *HI]), ("$A </s>", [*HI, 257]), ("<s> $A </s>", [256, *HI, 257])],
)
def test_bos_and_eos_are_written_once(template: str | None, expected: list[int]) -> None:
    tokenizer = Tokenizer(data(template))
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
    assert Tokenizer(TokenizerData(backend.to_str)).encode("21") == [2, 1, 0]


def test_a_token_may_be_given_as_id_or_as_text() -> None:
    by_text = Tokenizer(data())
    by_id = Tokenizer(data(bos=256, eos=(257, 3)))
    both = Tokenizer(data(bos=None, eos=("</s>", 3, 257, "no such token")))
    assert (by_text.bos_token, by_text.eos_ids, by_text.eos_token) == ("<s>", (257,), "</s>")
    assert (by_id.bos_token, by_id.eos_ids, by_id.eos_token) == ("<s>", (257, 3), "</s>")
    assert (both.bos_token, both.eos_ids, both.eos_token) == ("", (257, 3), "</s>")
    assert skipped(by_text) == {256, 257}
    assert skipped(by_id) == {256, 257, 3}


def skipped(tokenizer: Tokenizer) -> set[int]:
    return {id_ for id_, text in tokenizer.table(skip_special=True).items() if not text}


def test_tokens_have_text_and_bytes() -> None:
    tokenizer = Tokenizer(data())
    ids = tokenizer.encode("é<think></s>", add_special=False)
    assert [tokenizer.token_bytes(id_) for id_ in ids] == [b"\xc3", b"\xa9", b"<think>", b"</s>"]
    assert [tokenizer.token_text(id_) for id_ in ids] == ["\ufffd", "\ufffd", "<think>", "</s>"]
    assert tokenizer.decode(ids) == "é<think>"
    assert tokenizer.decode(ids, skip_special=False) == "é<think></s>"
    assert tokenizer.table(skip_special=False).keys() == set(range(259))
    assert tokenizer.token_text(259) == tokenizer.decode([259]) == ""


def test_half_a_surrogate_pair_is_an_error_of_the_request() -> None:
    with pytest.raises(ConfigError, match="surrogate"):
        Tokenizer(data()).encode("\ud83d")


@pytest.mark.parametrize("text", ["", "{", "{}"])
def test_a_damaged_tokenizer_json_is_reported(text: str) -> None:
    with pytest.raises(LoaderError, match=r"tokenizer\.json cannot be read"):
        Tokenizer(TokenizerData(lambda: text))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=st.one_of(st.text(max_size=30), st.text(alphabet="the page  é語🙂\n", max_size=40)))
def test_decoding_with_byte_tokens_is_that_of_the_library(
    llama_like: Tokenizer, llama_backend: Backend, text: str
) -> None:
    ids = llama_like.encode(text)
    assert ids == llama_backend.encode(text).ids
    assert llama_like.decode(ids) == llama_backend.decode(ids) == text


def test_the_text_stage_imports_no_model_library() -> None:
    code = (
        "import sys, srtkit.text.chat, srtkit.text.stream, srtkit.text.stream, srtkit.text.tokenizer; "
        "print({'torch', 'transformers', 'sentencepiece', 'gguf'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
