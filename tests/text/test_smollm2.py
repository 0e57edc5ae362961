"""The quick-start model's tokenizer and chat template, against transformers reading the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from srtkit.spec.tokenizer import TokenizerData
from srtkit.text.chat import ChatTemplate
from srtkit.text.stream import IncrementalDetokenizer
from srtkit.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model

STRINGS = [
    "",
    " ",
    "Hello world!",
    "  two  spaces   and\ttabs\n\n\nlines  \n",
    "12345 678",
    "Café déjà vu, naïve Größe, señor",
    "你好，世界！日本語のテキスト 한국어",
    "🙂👍🏽👩\u200d💻🇫🇷",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "def f(x):\n    return {'a': x ** 2}  # comment",
    "I'm you're THEY'LL don't",
    "\u00ad\u200b\ufeff\x00\x7f",
]


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> Any:
    """transformers builds one kind of byte-level tokenizer from every GGUF, which differs from this model's
    published tokenizer.json in two points, set right here: digits are cut off first (it matters where spaces meet
    a digit), and the 21 bytes that the vocabulary lacks (as 0x16) are dropped instead of becoming token 0."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    backend = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    backend.model.unk_token = None
    return tokenizer


@pytest.mark.parametrize("text", STRINGS)
def test_ids_and_text_are_those_of_transformers(smollm2: Tokenizer, reference: Any, text: str) -> None:
    ids = smollm2.encode(text)
    assert ids == reference.encode(text)
    assert smollm2.decode(ids, skip_special=False) == text


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=st.one_of(st.text(max_size=40), st.text(alphabet="ab 12\n'é你🙂", max_size=40)))
def test_ids_of_random_text_are_those_of_transformers(smollm2: Tokenizer, reference: Any, text: str) -> None:
    ids = smollm2.encode(text)
    assert ids == reference.encode(text)
    if all(char.isprintable() for char in text):
        assert smollm2.decode(ids) == text
    detokenizer = IncrementalDetokenizer(smollm2)
    assert "".join([detokenizer.push([id_]) for id_ in ids]) + detokenizer.flush() == smollm2.decode(ids)


def test_digits_are_single_tokens_also_after_spaces(smollm2: Tokenizer) -> None:
    assert smollm2.encode("12345") == [33, 34, 35, 36, 37]
    assert [smollm2.token_text(id_) for id_ in smollm2.encode("a  1")] == ["a", "  ", "1"]


def test_its_tokens_are_as_the_file_says(smollm2: Tokenizer) -> None:
    assert smollm2.bos_token == "<|im_start|>"
    assert (smollm2.eos_ids, smollm2.eos_token) == ((2,), "<|im_end|>")
    table = smollm2.table(skip_special=True)
    assert {id_ for id_, text in table.items() if not text} == set(range(17))
    assert len(table) == 49152
    assert smollm2.encode("Hi")[0] != 1


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hi"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        [
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "  and\n2 + 2? <b>&amp;</b> 🙂"},
        ],
    ],
)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_chat_prompts_are_those_of_transformers(
    smollm2: Tokenizer, smollm2_data: TokenizerData, reference: Any, messages: list[Any], add_generation_prompt: bool
) -> None:
    template = ChatTemplate(smollm2_data.chat_template, smollm2.bos_token, smollm2.eos_token)
    prompt = template.render(messages, add_generation_prompt)
    arguments: dict[str, Any] = {"add_generation_prompt": add_generation_prompt}
    assert prompt == reference.apply_chat_template(messages, tokenize=False, **arguments)
    ids = reference.apply_chat_template(messages, return_dict=False, **arguments)
    assert smollm2.encode(prompt) == smollm2.encode(prompt, add_special=False) == ids


def test_the_default_system_prompt_is_there(smollm2_data: TokenizerData) -> None:
    prompt = ChatTemplate(smollm2_data.chat_template).render([{"role": "user", "content": "Hi"}])
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
