"""Weights out of GGUF files: every quantisation, slices, row order, parts, damage."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Form

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import ModelLoader, ModelLoaderBuild, WeightRequest
from srtkit_conformance.inside import shortcomings
from srtkit_plugin_loader_gguf import srtkit_model_loader

WRITABLE = [Form.F32, Form.F16, Form.BF16, Form.Q8_0, Form.Q4_0, Form.Q4_1, Form.Q5_0, Form.Q5_1]
READ_ONLY = [Form.Q2_K, Form.Q3_K, Form.Q4_K, Form.Q5_K, Form.Q6_K, Form.IQ4_XS, Form.IQ2_XXS, Form.TQ1_0]
Q = "model.layers.1.self_attn.q_proj.weight"
K = "model.layers.1.self_attn.k_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"


def open_loader(path: Path) -> ModelLoader:
    plugin = srtkit_model_loader()
    assert plugin.accepts(path)
    config = plugin.describe(path, NoOptions()).config
    return plugin.build(ModelLoaderBuild(path=path, options=NoOptions(), config=config))


def read_all(loader: ModelLoader) -> dict[str, torch.Tensor]:
    requests = [WeightRequest(info.name, shape=info.shape) for info in loader.index()]
    return {request.name: tensor.clone() for request, tensor in loader.read(requests)}


def read_one(loader: ModelLoader, request: WeightRequest) -> torch.Tensor:
    [(answered, tensor)] = loader.read([request])
    assert answered is request
    return tensor.clone()


def test_it_keeps_the_contract() -> None:
    assert shortcomings("model_loader:gguf") == []


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_weight_comes_back_under_its_own_name(tiny: Any, tmp_path: Path, arch: str, tied: bool) -> None:
    model = tiny(arch, tie_word_embeddings=tied)
    loader = open_loader(model.write(tmp_path / "m.gguf"))
    weights = read_all(loader)
    assert weights.keys() == model.weights.keys()
    for name, expected in model.weights.items():
        assert torch.equal(weights[name], expected), name
    assert {info.name: info.shape for info in loader.index()} == {
        name: tuple(tensor.shape) for name, tensor in model.weights.items()
    }
    loader.close()


def test_biases_of_llama_q_and_k_are_reordered_like_their_weights(tiny: Any, tmp_path: Path) -> None:
    model = tiny("llama", attention_bias=True)
    loader = open_loader(model.write(tmp_path / "m.gguf"))
    bias = "model.layers.0.self_attn.k_proj.bias"
    assert torch.equal(read_one(loader, WeightRequest(bias)), model.weights[bias])
    part = read_one(loader, WeightRequest(bias, dim=0, start=60, stop=70))
    assert torch.equal(part, model.weights[bias][60:70])


@pytest.mark.parametrize("form", WRITABLE, ids=lambda form: form.name)
def test_quantised_matrices_equal_the_librarys_own_values(tiny: Any, tmp_path: Path, form: Form) -> None:
    model = tiny("qwen2")  # stored in order, so the arrays can be compared as they are
    loader = open_loader(model.write(tmp_path / "m.gguf", form))
    weights = read_all(loader)
    infos = {info.name: info for info in loader.index()}
    plain = {Form.F32: torch.float32, Form.F16: torch.float16, Form.BF16: torch.bfloat16}.get(form)
    for name, tensor in model.weights.items():
        if tensor.ndim > 1:
            expected = torch.from_numpy(gguf.dequantize(gguf.quantize(tensor.numpy(), form), form))
            assert torch.equal(weights[name].float(), expected), name
            assert weights[name].dtype == (plain or torch.float32)
            assert infos[name].quantized == ("" if plain else form.name)
            assert infos[name].dtype == str(plain or torch.float32).removeprefix("torch.")


@pytest.mark.parametrize("form", READ_ONLY, ids=lambda form: form.name)
def test_forms_that_the_library_can_only_read(tiny: Any, tmp_path: Path, form: Form) -> None:
    block, size = gguf.GGML_QUANT_SIZES[form]
    raw = np.random.default_rng(3).integers(0, 60, (96, 256 // block * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen2")
    tiny("qwen2").write_metadata(writer)
    writer.add_tensor("token_embd.weight", raw, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    loader = open_loader(tmp_path / "m.gguf")
    name = "model.embed_tokens.weight"
    expected = torch.from_numpy(gguf.dequantize(raw, form))
    assert torch.equal(read_one(loader, WeightRequest(name)), expected)
    assert torch.equal(read_one(loader, WeightRequest(name, 0, 5, 33)), expected[5:33])
    assert torch.equal(read_one(loader, WeightRequest(name, 1, 7, 201)), expected[:, 7:201])


@pytest.mark.parametrize("form", [Form.F32, Form.BF16, Form.Q4_1], ids=lambda form: form.name)
@pytest.mark.parametrize("name", [Q, K, DOWN, "lm_head.weight", "model.norm.weight"])
def test_slices_equal_the_same_part_of_the_whole(tiny: Any, tmp_path: Path, form: Form, name: str) -> None:
    loader = open_loader(tiny("llama").write(tmp_path / "m.gguf", form))
    whole = read_one(loader, WeightRequest(name))
    for dim, size in enumerate(whole.shape):
        for start, stop in [(0, size), (0, size // 2), (size // 2, size), (3, 4), (31, 65), (size - 5, size)]:
            part = read_one(loader, WeightRequest(name, dim, start, stop, tuple(whole.shape)))
            assert torch.equal(part, whole.narrow(dim, start, stop - start)), (dim, start, stop)


def test_only_the_requested_rows_are_dequantised(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from srtkit_plugin_loader_gguf import loader as module

    opened = open_loader(tiny("llama").write(tmp_path / "m.gguf", Form.Q4_1))
    seen: list[int] = []
    original = module.dequantize

    def counting(data: np.ndarray, form: Form) -> np.ndarray:
        values = original(data, form)
        seen.append(values.size)
        return values

    monkeypatch.setattr(module, "dequantize", counting)
    read_one(opened, WeightRequest(Q, 0, 10, 13))
    assert sum(seen) == 3 * 256
    seen.clear()
    read_one(opened, WeightRequest(DOWN, 1, 40, 50))
    assert sum(seen) == 256 * 32


def test_each_request_is_answered_once_in_file_order(tiny: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    loader = open_loader(model.write(tmp_path / "m.gguf"))
    order = [info.name for info in loader.index()]
    requests = [WeightRequest(name) for name in reversed(order)] + [WeightRequest(Q, 0, 0, 64)]
    answered = [request for request, _ in loader.read(requests)]
    assert sorted(map(id, answered)) == sorted(map(id, requests))
    places = [order.index(request.name) for request in answered]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (WeightRequest("model.layers.9.mlp.up_proj.weight"), "no weight model.layers.9"),
        (WeightRequest(Q, shape=(256, 128)), r"shape \[256, 256\], the model expects \[256, 128\]"),
        (WeightRequest(Q, 0, 0, 257), r"\[0, 257\) of dimension 0"),
        (WeightRequest(Q, 0, 5, 5), r"\[5, 5\) of dimension 0"),
        (WeightRequest(Q, 2, 0, 1), r"of dimension 2"),
        (WeightRequest("model.norm.weight", 1, 0, 1), r"of dimension 1"),
    ],
)
def test_requests_that_do_not_fit(tiny: Any, tmp_path: Path, request_: WeightRequest, words: str) -> None:
    loader = open_loader(tiny("llama").write(tmp_path / "m.gguf"))
    with pytest.raises(LoaderError, match=words) as caught:
        list(loader.read([WeightRequest(DOWN), request_]))
    assert "m.gguf" in str(caught.value)


def test_a_split_model_is_one_model(tiny: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    model.write(tmp_path / "m.gguf", split_max_tensors=7)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 2
    for source in (tmp_path, parts[0], parts[1]):
        weights = read_all(open_loader(source))
        assert weights.keys() == model.weights.keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in model.weights.items())


def test_a_split_model_with_a_missing_part_is_refused(tiny: Any, tmp_path: Path) -> None:
    tiny("llama").write(tmp_path / "m.gguf", split_max_tensors=7)
    parts = sorted(tmp_path.glob("*.gguf"))
    parts[1].unlink()
    with pytest.raises(LoaderError, match=parts[1].name):
        open_loader(tmp_path)
    renamed = parts[0].rename(tmp_path / "whole.gguf")
    with pytest.raises(LoaderError, match=r"whole.gguf: is one of \d parts"):
        open_loader(renamed)


def test_a_folder_with_two_models_is_refused(tiny: Any, tmp_path: Path) -> None:
    path = tiny("llama").write(tmp_path / "a.gguf")
    assert open_loader(tmp_path).index()
    (tmp_path / "b.gguf").write_bytes(path.read_bytes())
    with pytest.raises(LoaderError, match=r"a\.gguf, b\.gguf"):
        open_loader(tmp_path)


def test_a_folder_that_holds_another_form_too_is_not_accepted(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "m.gguf").touch()
    assert not srtkit_model_loader().accepts(tmp_path)


def test_a_file_cut_anywhere_is_refused_by_name(tiny: Any, tmp_path: Path) -> None:
    whole = tiny("llama").write(tmp_path / "m.gguf", Form.Q8_0).read_bytes()
    cut = tmp_path / "cut.gguf"
    tail = len(whole) - gguf.GGUFReader(tmp_path / "m.gguf").tensors[-1].n_bytes
    for size in [*range(0, 4000, 41), tail - 1, tail, tail + 1, len(whole) // 2, len(whole) - 64, len(whole) - 33]:
        cut.write_bytes(whole[:size])
        with pytest.raises(LoaderError, match=r"cut\.gguf"):
            open_loader(cut)


def test_flipped_bytes_never_raise_anything_else(tiny: Any, tmp_path: Path) -> None:
    """A damaged header gives a `LoaderError`, or a model that can be described; never another error."""
    whole = bytearray(tiny("llama", num_hidden_layers=1).write(tmp_path / "m.gguf").read_bytes())
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    broken = tmp_path / "broken.gguf"
    rng = np.random.default_rng(0)
    refusals = []
    for at in rng.integers(0, reader.data_offset, 300):
        saved = whole[at]
        whole[at] ^= int(rng.integers(1, 256))
        broken.write_bytes(whole)
        try:
            open_loader(broken).close()
        except LoaderError as error:
            refusals.append(str(error))
        whole[at] = saved
    assert len(refusals) > 50
    assert all("broken.gguf" in refusal for refusal in refusals)


def test_a_form_that_the_library_cannot_read_is_refused(tiny: Any, tmp_path: Path) -> None:
    path = tiny("llama").write(tmp_path / "m.gguf")
    name = b"blk.0.ffn_up.weight"
    for number, words in [(9, "Q8_1"), (4711, "unknown form 4711")]:
        data = bytearray(path.read_bytes())
        at = data.index(name) + len(name) + 4 + 2 * 8  # after the name: dimension count, two dimensions
        data[at : at + 4] = struct.pack("<I", number)
        bad = tmp_path / "bad.gguf"
        bad.write_bytes(data)
        with pytest.raises(LoaderError, match=words):
            open_loader(bad)
