"""What numpy stored comes back, whole and in slices; what is wrong with a file is said with its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import ModelLoader, ModelLoaderBuild, WeightInfo, WeightRequest
from srtkit_plugin_loader_my_plugin import WEIGHTS, srtkit_model_loader

DESCRIPTOR = srtkit_model_loader()
RANDOM = np.random.default_rng(3)
ARRAYS: dict[str, Any] = {
    "model.norm.weight": RANDOM.standard_normal(6).astype(np.float32),
    "model.up.weight": RANDOM.standard_normal((8, 6)).astype(np.float16),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Toy"], "eos_token_id": 2}))
    np.savez_compressed(tmp_path / WEIGHTS, **ARRAYS)
    return tmp_path


def open_loader(folder: Path) -> ModelLoader:
    return DESCRIPTOR.build(ModelLoaderBuild(folder, NoOptions(), {}))


def test_accepts_its_own_form_only(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert DESCRIPTOR.accepts(folder)
    assert not DESCRIPTOR.accepts(tmp_path_factory.mktemp("empty"))
    assert not DESCRIPTOR.accepts(folder / WEIGHTS)


def test_describes_a_model_with_and_without_text(folder: Path) -> None:
    described = DESCRIPTOR.describe(folder, NoOptions())
    assert (described.config["architectures"], described.tokenizer) == (["Toy"], None)
    (folder / "tokenizer.json").write_text("{}")
    tokenizer = DESCRIPTOR.describe(folder, NoOptions()).tokenizer
    assert tokenizer is not None
    assert (tokenizer.json(), tokenizer.eos) == ("{}", (2,))


@pytest.mark.parametrize("content", [None, "{"])
def test_a_config_that_is_missing_or_damaged_is_named(folder: Path, content: str | None) -> None:
    (folder / "config.json").unlink() if content is None else (folder / "config.json").write_text(content)
    with pytest.raises(LoaderError, match=r"config\.json"):
        DESCRIPTOR.describe(folder, NoOptions())


def test_index_lists_what_is_stored(folder: Path) -> None:
    assert open_loader(folder).index() == [
        WeightInfo("model.norm.weight", (6,), "float32"),
        WeightInfo("model.up.weight", (8, 6), "float16"),
    ]


def test_every_request_is_answered_once_with_its_slice(folder: Path) -> None:
    up = "model.up.weight"
    wanted = {
        WeightRequest(up, 0, 2, 5, (8, 6)): ARRAYS[up][2:5],
        WeightRequest("model.norm.weight"): ARRAYS["model.norm.weight"],
        WeightRequest(up, 1, 3, 6): ARRAYS[up][:, 3:6],
        WeightRequest(up): ARRAYS[up],
    }
    answers = [(request, tensor.clone()) for request, tensor in open_loader(folder).read(wanted)]
    assert len(answers) == len(wanted)
    for request, tensor in answers:
        assert torch.equal(tensor, torch.from_numpy(wanted[request]))


@pytest.mark.parametrize(
    ("request_", "cause"),
    [
        (WeightRequest("model.down.weight"), "no weight model.down.weight"),
        (WeightRequest("model.up.weight", shape=(6, 8)), r"expects \(6, 8\)"),
        (WeightRequest("model.up.weight", 0, 4, 9), r"no \[4, 9\)"),
        (WeightRequest("model.norm.weight", 1, 0, 1), "dimension 1"),
        (WeightRequest("model.norm.weight", -1, 0, 1), "dimension -1"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(folder: Path, request_: WeightRequest, cause: str) -> None:
    with pytest.raises(LoaderError, match=cause):
        list(open_loader(folder).read([request_]))


@pytest.mark.parametrize("kept", [0, 100, -30])
def test_a_truncated_file_is_refused(folder: Path, kept: int) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:kept])
    with pytest.raises(LoaderError, match=r"weights\.npz: is not a sound"):
        open_loader(folder)


def test_a_damaged_weight_is_refused(folder: Path) -> None:
    big = RANDOM.standard_normal(10_000).astype(np.float32)
    np.savez(folder / WEIGHTS, big=big)
    whole = bytearray((folder / WEIGHTS).read_bytes())
    whole[whole.index(big[-4:].tobytes())] ^= 255
    (folder / WEIGHTS).write_bytes(whole)
    loader = open_loader(folder)
    with pytest.raises(LoaderError, match=r"big cannot be read"):
        list(loader.read([WeightRequest("big")]))


@pytest.mark.parametrize("dtype", ["complex64", ">f4", "O"])
def test_a_dtype_that_torch_would_misread_is_refused(folder: Path, dtype: str) -> None:
    np.savez(folder / WEIGHTS, odd=np.zeros(3, dtype))
    with pytest.raises(LoaderError, match=r"odd\.npy has the dtype"):
        open_loader(folder)


def test_close_midway_ends_the_reading_with_an_error(folder: Path) -> None:
    loader = open_loader(folder)
    reading = loader.read([WeightRequest(name) for name in ARRAYS])
    next(reading)
    loader.close()
    with pytest.raises(LoaderError, match="cannot be read"):
        next(reading)
