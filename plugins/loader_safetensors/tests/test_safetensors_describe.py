"""What a model folder says of its model: config, tokenizer, chat template, generation defaults."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sentencepiece import SentencePieceTrainer
from tokenizers import Tokenizer
from tokenizers.models import BPE

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import ModelDescription
from srtkit.spec.tokenizer import TokenizerData
from srtkit_plugin_loader_safetensors import srtkit_model_loader


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file({"w": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    put(tmp_path, "config.json", {"architectures": ["LlamaForCausalLM"], "bos_token_id": 5, "eos_token_id": 6})
    return tmp_path


def put(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content))


def described(folder: Path) -> ModelDescription:
    return srtkit_model_loader().describe(folder, NoOptions())


def tokenizer(folder: Path) -> TokenizerData:
    data = described(folder).tokenizer
    assert data is not None
    return data


def test_a_folder_without_tokenizer_or_defaults(folder: Path) -> None:
    assert described(folder) == ModelDescription(json.loads((folder / "config.json").read_text()), None, {})


def test_tokenizer_json_goes_before_tokenizer_model(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(b"\x0a\x00")
    put(folder, "tokenizer_config.json", {"bos_token": "<s>"})
    with pytest.raises(LoaderError, match=r"tokenizer\.model is damaged"):
        tokenizer(folder).json()
    (folder / "tokenizer.json").write_text('{"é": 1}', encoding="utf-8")
    assert tokenizer(folder).json() == '{"é": 1}'


def test_tokenizer_model_is_converted_with_what_its_config_says(folder: Path) -> None:
    file = io.BytesIO()
    texts = iter(["a page holds sixteen tokens", "a lease pins pages"] * 20)
    options = {"vocab_size": 40, "hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2}
    SentencePieceTrainer.train(sentence_iterator=texts, model_writer=file, model_type="bpe", **options)
    (folder / "tokenizer.model").write_bytes(file.getvalue())
    put(folder, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "add_eos_token": True})
    assert Tokenizer.from_str(tokenizer(folder).json()).encode("").ids == [1, 2]
    (folder / "tokenizer_config.json").unlink()
    put(folder, "config.json", {"bos_token_id": 1, "eos_token_id": 2})
    assert Tokenizer.from_str(tokenizer(folder).json()).encode("").ids == [1]


def test_tokens_that_only_tokenizer_config_lists_are_added(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(Tokenizer(BPE({"a": 0}, [])).to_str())
    assert tokenizer(folder).json() == (folder / "tokenizer.json").read_text()
    put(folder, "tokenizer_config.json", {"added_tokens_decoder": {"1": {"content": "<call>", "special": True}}})
    assert Tokenizer.from_str(tokenizer(folder).json()).token_to_id("<call>") == 1


def test_special_tokens_as_text_or_object(folder: Path) -> None:
    put(folder, "tokenizer.json", {})
    put(folder, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}})
    data = tokenizer(folder)
    assert (data.bos, data.eos) == ("<s>", ("</s>", 6))


def test_a_bos_token_of_null_means_none_whatever_the_config_says(folder: Path) -> None:
    put(folder, "tokenizer.json", {})
    put(folder, "tokenizer_config.json", {"bos_token": None})
    assert tokenizer(folder).bos is None
    (folder / "tokenizer_config.json").unlink()
    assert tokenizer(folder).bos == 5


def test_all_eos_ids_of_the_generation_config(folder: Path) -> None:
    put(folder, "tokenizer.json", {})
    put(folder, "generation_config.json", {"eos_token_id": [128001, 128008, 128009], "temperature": 0.6})
    assert tokenizer(folder).eos == (128001, 128008, 128009)
    assert described(folder).generation["temperature"] == 0.6
    put(folder, "generation_config.json", {"temperature": 0.6})
    assert tokenizer(folder).eos == (6,)
    put(folder, "generation_config.json", {"eos_token_id": ["six"]})
    with pytest.raises(LoaderError, match="no token id"):
        described(folder)


def test_chat_template_from_each_place(folder: Path) -> None:
    put(folder, "tokenizer.json", {})
    assert tokenizer(folder).chat_template is None
    put(folder, "tokenizer_config.json", {"chat_template": "in config"})
    assert tokenizer(folder).chat_template == "in config"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    put(folder, "tokenizer_config.json", {"chat_template": named})
    assert tokenizer(folder).chat_template == "named"
    put(folder, "chat_template.json", {"chat_template": "own json"})
    assert tokenizer(folder).chat_template == "own json"
    (folder / "chat_template.jinja").write_text("own file {{ 'ü' }}", encoding="utf-8")
    assert tokenizer(folder).chat_template == "own file {{ 'ü' }}"


def test_named_templates_without_a_default_are_refused(folder: Path) -> None:
    put(folder, "tokenizer.json", {})
    put(folder, "tokenizer_config.json", {"chat_template": [{"name": "rag", "template": "x"}]})
    with pytest.raises(LoaderError, match=r"templates \(rag\) is called 'default'"):
        described(folder)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", b'{"a": ', "config.json: is not sound JSON"),
        ("config.json", b"[]", "config.json: holds no JSON object"),
        ("config.json", b"\xff\xfe\xfa", "config.json: is not sound JSON"),
        ("generation_config.json", b"{", "generation_config.json: is not sound JSON"),
        ("tokenizer_config.json", b"{", "tokenizer_config.json: is not sound JSON"),
        ("tokenizer.json", b"\xff", "tokenizer.json: is not UTF-8"),
        ("model.safetensors", None, "holds neither model.safetensors nor"),
    ],
)
def test_damaged_files_are_named(folder: Path, name: str, content: bytes | None, words: str) -> None:
    put(folder, "tokenizer.json", {})
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(LoaderError, match=words):
        described(folder)


def test_quantised_folders_are_refused_by_method(folder: Path) -> None:
    put(folder, "config.json", {"quantization_config": {"quant_method": "awq", "bits": 4}})
    with pytest.raises(LoaderError, match="awq"):
        described(folder)


def test_where_only_kv_is_quantised_the_weights_are_as_they_are(folder: Path) -> None:
    """Such a folder has scales among its weights, and nothing else to undo."""
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    put(folder, "config.json", {"quantization_config": {**scheme, "config_groups": {}}, "eos_token_id": 6})
    assert described(folder).config == {"eos_token_id": 6}
    put(folder, "config.json", {"quantization_config": {**scheme, "config_groups": {"group_0": {}}}})
    with pytest.raises(LoaderError, match="compressed-tensors"):
        described(folder)


def test_what_is_accepted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    accepts = srtkit_model_loader().accepts
    assert accepts(folder)
    assert not accepts(folder / "model.safetensors")
    empty = tmp_path_factory.mktemp("empty")
    assert not accepts(empty)
    (empty / "config.json").touch()
    assert not accepts(empty)
    (empty / "m.gguf").touch()
    (empty / "training_args.bin").touch()
    assert not accepts(empty)
