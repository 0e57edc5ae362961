"""Made-up weights and the tokenizer of bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import ModelLoader, ModelLoaderBuild, WeightRequest
from srtkit_conformance.inside import shortcomings
from srtkit_plugin_loader_dummy import DummyOptions, srtkit_model_loader

CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 300, "eos_token_id": [2, 299, 4000]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def open_loader(source: Path, **options: Any) -> ModelLoader:
    return srtkit_model_loader().build(ModelLoaderBuild(path=source, options=DummyOptions(**options), config=CONFIG))


def read_one(loader: ModelLoader, *request: Any) -> torch.Tensor:
    asked = WeightRequest(*request)
    [(answered, tensor)] = loader.read([asked])
    assert answered is asked
    return tensor


def test_it_keeps_the_contract() -> None:
    assert shortcomings("model_loader:dummy") == []


def test_the_same_seed_and_name_give_the_same_weight(source: Path) -> None:
    first = read_one(open_loader(source), "a.weight", None, 0, 0, (64, 32))
    assert torch.equal(first, read_one(open_loader(source), "a.weight", None, 0, 0, (64, 32)))
    assert not torch.equal(first, read_one(open_loader(source), "b.weight", None, 0, 0, (64, 32)))
    assert not torch.equal(first, read_one(open_loader(source, seed=1), "a.weight", None, 0, 0, (64, 32)))


def test_distribution(source: Path) -> None:
    shape = (1200, 1000)  # more than the pool
    weight = read_one(open_loader(source), "x.weight", None, 0, 0, shape)
    assert weight.shape == shape
    assert weight.dtype == torch.float32
    assert weight.mean().abs() < 1e-4
    assert weight.std() == pytest.approx(0.02, rel=0.01)
    assert len(torch.unique(weight[:, 0])) > 1190
    assert torch.linalg.matrix_rank(weight[:200, :200].double()) == 200
    assert read_one(open_loader(source, std=0.5), "x.weight", None, 0, 0, shape).std() == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.input_layernorm.weight", "l.q_norm.weight"])
def test_norms_are_about_one(source: Path, name: str) -> None:
    weight = read_one(open_loader(source), name, None, 0, 0, (512,))
    assert weight.mean() == pytest.approx(1, abs=0.01)
    assert 0 < weight.std() < 0.05


def test_requests_that_do_not_fit(source: Path) -> None:
    for request, words in [
        (("w",), "without its shape"),
        (("w", 0, 0, 9, (8, 8)), r"\[0, 9\) of dimension 0"),
        (("w", 2, 0, 1, (8, 8)), "of dimension 2"),
    ]:
        with pytest.raises(LoaderError, match=words):
            read_one(open_loader(source), *request)
    assert open_loader(source).index() == ()


def test_what_it_accepts(source: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    accepts = srtkit_model_loader().accepts
    assert accepts(source)
    assert accepts(source / "config.json")
    assert not accepts(tmp_path_factory.mktemp("empty"))
    assert not accepts(source / "absent.json")


def test_description(source: Path) -> None:
    kind = srtkit_model_loader()
    description = kind.describe(source / "config.json", DummyOptions())
    assert description.config == CONFIG
    assert description.generation == {"eos_token_id": [2, 299, 4000]}
    assert kind.describe(source, DummyOptions(tokenizer="none")).tokenizer is None


def test_every_byte_has_its_id_and_every_id_a_text(source: Path) -> None:
    data = srtkit_model_loader().describe(source, DummyOptions()).tokenizer
    assert data is not None
    assert data.eos == (2, 299)
    tokenizer = Tokenizer.from_str(data.json())
    assert tokenizer.get_vocab_size() == 300
    text = "".join(map(chr, range(128))) + " naïve 漢字 🙂 don't"
    ids = tokenizer.encode(text).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([104, 105, 299]) == "hi 299"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "cannot be read as JSON"),
        (b"[]", "holds no JSON object"),
        (b'{"vocab_size": 255}', "vocab_size is 255"),
        (b"{}", "vocab_size is None"),
    ],
)
def test_damaged_configs_are_named(source: Path, content: bytes, words: str) -> None:
    (source / "config.json").write_bytes(content)
    with pytest.raises(LoaderError, match=words) as caught:
        srtkit_model_loader().describe(source, DummyOptions())
    assert "config.json" in str(caught.value)
