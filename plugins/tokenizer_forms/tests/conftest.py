"""SentencePiece models trained here."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from sentencepiece import SentencePieceTrainer

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
def train_spm() -> Callable[..., bytes]:
    """Train a SentencePiece model on the corpus; options are those of its trainer. Same options, same model."""
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


@pytest.fixture(scope="session")
def llama_spm(train_spm: Callable[..., bytes]) -> bytes:
    """A tokenizer.model with the settings of Llama's: BPE, byte fallback, nothing normalised."""
    return train_spm(model_type="bpe", **LLAMA)
