"""Weights out of safetensors folders: single and sharded, slices, order, damage."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import ModelLoader, ModelLoaderBuild, WeightRequest
from srtkit_conformance.inside import shortcomings
from srtkit_plugin_loader_safetensors import srtkit_model_loader

UP = "model.layers.1.mlp.up_proj.weight"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


@pytest.fixture
def single(model: Any, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "single")
    return tmp_path / "single"


@pytest.fixture
def sharded(model: Any, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "sharded", max_shard_size="60KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 3
    return tmp_path / "sharded"


def open_loader(folder: Path) -> ModelLoader:
    plugin = srtkit_model_loader()
    assert plugin.accepts(folder)
    config = plugin.describe(folder, NoOptions()).config
    return plugin.build(ModelLoaderBuild(path=folder, options=NoOptions(), config=config))


def rewrite_index(folder: Path, **changes: str) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= changes
    (folder / INDEX).write_text(json.dumps(index))


def test_it_keeps_the_contract() -> None:
    assert shortcomings("model_loader:safetensors") == []


@pytest.mark.parametrize("form", ["single", "sharded"])
def test_round_trip(model: Any, form: str, request: pytest.FixtureRequest) -> None:
    loader = open_loader(request.getfixturevalue(form))
    expected = model.state_dict()
    del expected["lm_head.weight"]  # tied
    infos = {info.name: info for info in loader.index()}
    assert infos.keys() == expected.keys()
    requests = [WeightRequest(name, shape=infos[name].shape) for name in expected]
    for asked, tensor in loader.read(requests):
        assert torch.equal(tensor, expected[asked.name]), asked.name
        assert tensor.dtype == torch.bfloat16
        assert infos[asked.name].dtype == "bfloat16"
        assert infos[asked.name].shape == tuple(tensor.shape)
    loader.close()


def test_each_request_is_answered_once_in_file_order(sharded: Path) -> None:
    loader = open_loader(sharded)
    order = [info.name for info in loader.index()]
    files = sorted(sharded.glob("*.safetensors"))
    assert set(order[: len(load_file(files[0]))]) == load_file(files[0]).keys()
    requests = [WeightRequest(name) for name in reversed(order)] + [WeightRequest(UP, 0, 0, 80)]
    answered = [request for request, _ in loader.read(requests)]
    assert sorted(map(id, answered)) == sorted(map(id, requests))
    places = [order.index(request.name) for request in answered]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (WeightRequest("model.layers.9.mlp.up_proj.weight"), "no weight model.layers.9"),
        (WeightRequest(UP, shape=(64, 160)), r"shape \[160, 64\], the model expects \[64, 160\]"),
        (WeightRequest(UP, 0, 0, 161), r"\[0, 161\) of dimension 0"),
        (WeightRequest(UP, 0, 5, 5), r"\[5, 5\) of dimension 0"),
        (WeightRequest(UP, 0, -1, 5), r"\[-1, 5\) of dimension 0"),
        (WeightRequest(UP, 2, 0, 1), "of dimension 2"),
    ],
)
def test_requests_that_do_not_fit(single: Path, request_: WeightRequest, words: str) -> None:
    with pytest.raises(LoaderError, match=words):
        list(open_loader(single).read([WeightRequest("model.norm.weight"), request_]))


def test_a_missing_shard_is_named_before_any_weight_is_read(sharded: Path) -> None:
    gone = sorted(sharded.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(LoaderError, match=gone.name):
        srtkit_model_loader().describe(sharded, NoOptions())


@pytest.mark.parametrize(
    "file",
    ["../single/model.safetensors", "/etc/model.safetensors", "..\\m.safetensors", "c:m.safetensors", "a.bin", ""],
)
def test_the_index_cannot_lead_out_of_the_folder(single: Path, sharded: Path, file: str) -> None:
    rewrite_index(sharded, **{UP: file})
    with pytest.raises(LoaderError, match="no safetensors file of this folder"):
        srtkit_model_loader().describe(sharded, NoOptions())


def test_an_index_that_promises_too_much(sharded: Path) -> None:
    first = sorted(sharded.glob("*.safetensors"))[0]
    rewrite_index(sharded, **{"model.layers.7.mlp.up_proj.weight": first.name})
    with pytest.raises(LoaderError, match=rf"{first.name}: lacks model\.layers\.7"):
        open_loader(sharded)


def test_a_weight_twice_in_the_index_is_refused(sharded: Path) -> None:
    text = (sharded / INDEX).read_text()
    first = sorted(sharded.glob("*.safetensors"))[0]
    doubled = text.replace('"weight_map": {', f'"weight_map": {{"{UP}": "{first.name}",')
    assert doubled != text
    (sharded / INDEX).write_text(doubled)
    with pytest.raises(LoaderError, match=f"{UP}' stands there twice"):
        srtkit_model_loader().describe(sharded, NoOptions())


def test_a_weight_in_two_shards_is_refused(sharded: Path) -> None:
    place = json.loads((sharded / INDEX).read_text())["weight_map"][UP]
    other = next(file for file in sorted(sharded.glob("*.safetensors")) if file.name != place)
    save_file(load_file(other) | {UP: torch.zeros(160, 64)}, other)
    with pytest.raises(LoaderError, match=f"{other.name}: holds {UP}, which the index puts into {place}"):
        open_loader(sharded)


def test_a_weight_that_the_index_does_not_mention_is_ignored(sharded: Path) -> None:
    file = sorted(sharded.glob("*.safetensors"))[0]
    save_file(load_file(file) | {"leftover": torch.zeros(3)}, file)
    assert "leftover" not in {info.name for info in open_loader(sharded).index()}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "too small"),
        (b"abc", "too small"),
        (struct.pack("<Q", 1 << 40) + b"{}", "too large"),
        (struct.pack("<Q", 5) + b'{"a":', "JSON"),
        ({"a": {"dtype": "Q9", "shape": [1], "data_offsets": [0, 4]}}, "Q9"),
        ({"a": {"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}}, "dtype C64, which is not known"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "not a sound safetensors file"),
        ({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}, "not fully covered"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, content: Any, words: str) -> None:
    if isinstance(content, dict):
        header = json.dumps(content).encode()
        content = struct.pack("<Q", len(header)) + header + bytes(8)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(LoaderError, match=words) as caught:
        open_loader(tmp_path)
    assert "model.safetensors" in str(caught.value)


def test_shards_without_an_index_are_refused(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    with pytest.raises(LoaderError, match=f"no {INDEX}"):
        srtkit_model_loader().describe(sharded, NoOptions())


class Trap:
    """Unpickling this leaves a file behind."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


def test_pickled_weights_are_refused_and_never_opened(tmp_path: Path) -> None:
    folder, trap = tmp_path / "model", tmp_path / "opened"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(trap)))
    with pytest.raises(LoaderError, match=r"pickled \(pytorch_model\.bin\)") as caught:
        open_loader(folder)
    assert "safetensors" in caught.value.remedy
    assert not trap.exists()
