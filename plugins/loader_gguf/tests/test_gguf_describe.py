"""What a GGUF file says of its model: config, rotary scaling, tokenizer; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import ModelDescription
from srtkit_plugin_loader_gguf import describe
from srtkit_plugin_loader_gguf.rope import explain_factors

LLAMA_31 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA_32 = LLAMA_31 | {"factor": 32.0}


def described(model: Any, tmp_path: Path) -> ModelDescription:
    return describe(model.write(tmp_path / "m.gguf"), NoOptions())


def rope_factors(scaling: dict[str, Any], head_dim: int, theta: float) -> np.ndarray:
    """The divisors that the converter stores: unscaled over scaled frequencies of transformers."""
    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "llama3", "rope_theta": theta, **scaling},
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    unscaled = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return (unscaled / scaled).numpy().astype(np.float32)


@pytest.mark.parametrize(
    ("arch", "architecture"),
    [("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")],
)
def test_config_has_the_keys_of_hugging_face(tiny: Any, tmp_path: Path, arch: str, architecture: str) -> None:
    model = tiny(arch)
    config = described(model, tmp_path).config
    assert config["architectures"] == [architecture]
    for key in (
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
        "tie_word_embeddings",
        "hidden_act",
    ):
        assert config[key] == getattr(model.config, key), key
    assert config["rms_norm_eps"] == np.float32(1e-6)
    assert config["rope_parameters"] == {"rope_theta": 250000.0, "rope_type": "default"}
    assert config["attention_bias"] is (arch == "qwen2")
    assert config["dtype"] == "float32"
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, [2])


def test_defaults_of_the_format(tiny: Any, tmp_path: Path) -> None:
    """Without their keys: head size from the width, theta 10,000, tied head without output.weight."""
    model = tiny("llama", tie_word_embeddings=True)
    path = model.write(tmp_path / "m.gguf")
    data = path.read_bytes()
    for key in (b"llama.attention.key_length", b"llama.rope.freq_base"):
        data = data.replace(key, b"other" + key[5:])
    path.write_bytes(data)
    config = describe(path, NoOptions()).config
    assert (config["head_dim"], config["rope_parameters"]["rope_theta"]) == (64, 10000.0)
    assert config["tie_word_embeddings"] is True


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0"])
def test_dtype_is_that_of_plain_matrices(tiny: Any, tmp_path: Path, name: str) -> None:
    from gguf import GGMLQuantizationType as Form

    path = tiny("llama").write(tmp_path / "m.gguf", Form[name])
    assert describe(path, NoOptions()).config.get("dtype") == {"F16": "float16", "BF16": "bfloat16"}.get(name)


@pytest.mark.parametrize(("scaling", "head_dim"), [(LLAMA_31, 128), (LLAMA_32, 64), (LLAMA_32, 128)])
def test_llama3_scaling_is_found_again(tiny: Any, tmp_path: Path, scaling: dict[str, Any], head_dim: int) -> None:
    model = tiny("llama", head_dim=head_dim, rope_theta=500000.0)
    model.extra["rope_freqs.weight"] = rope_factors(scaling, head_dim, 500000.0)
    config = described(model, tmp_path).config
    assert config["rope_parameters"] == {"rope_theta": 500000.0, "rope_type": "llama3", **scaling}


def test_factors_without_a_rule() -> None:
    ones = (1.0,) * 32
    assert explain_factors(ones, 10000.0) == {"rope_type": "default"}
    assert explain_factors((4.0,) * 32, 10000.0) == {"rope_type": "linear", "factor": 4.0}
    good = rope_factors(LLAMA_31, 64, 500000.0)
    assert explain_factors(tuple(good.tolist()), 500000.0) is not None
    for place in (0, 31, int(np.argmax(good > 1.5))):
        bad = good.copy()
        bad[place] *= 1.01
        assert explain_factors(tuple(bad.tolist()), 500000.0) is None, place
    assert explain_factors((*ones[:-1], 8.0), 10000.0) is None


def test_linear_and_yarn_scaling(tiny: Any, tmp_path: Path) -> None:
    model = tiny("qwen2")
    model.keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.5}
    assert described(model, tmp_path).config["rope_parameters"] == {
        "rope_theta": 250000.0,
        "rope_type": "linear",
        "factor": 2.5,
    }
    model.keys = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32768,
        "rope.scaling.yarn_beta_fast": 16.0,
        "rope.scaling.attn_factor": 0.5,
    }
    assert described(model, tmp_path).config["rope_parameters"] == {
        "rope_theta": 250000.0,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "beta_fast": 16.0,
        "attention_factor": pytest.approx(0.5 * (1 + 0.1 * np.log(4))),
    }


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"expert_count": 8}, "llama.expert_count"),
        ({"logit_scale": 0.5}, "llama.logit_scale"),
        ({"rope.dimension_count": 32}, "rotates 32 of 64"),
        ({"rope.scaling.type": "longrope"}, "'longrope' is not known"),
        ({"rope.scaling.type": "linear"}, "rope.scaling.factor is missing"),
        ({"attention.causal": False}, "not causal"),
        ({"attention.value_length": 32}, "different head sizes"),
    ],
)
def test_what_it_does_not_understand_is_refused(tiny: Any, tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    model = tiny("llama")
    model.keys = keys
    with pytest.raises(LoaderError, match=words) as caught:
        described(model, tmp_path)
    assert "m.gguf" in str(caught.value)
    assert caught.value.remedy


def test_a_key_that_is_zero_changes_nothing(tiny: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    model.keys = {"expert_count": 0}
    assert described(model, tmp_path).config["model_type"] == "llama"


def test_unknown_tensors_are_refused(tiny: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    model.extra = {f"blk.{i}.attn_sinks.weight": np.zeros(4, np.float32) for i in range(5)}
    with pytest.raises(LoaderError, match=r"blk\.0\.attn_sinks\.weight.* and 2 more"):
        described(model, tmp_path)


def test_an_unknown_architecture_is_named(tiny: Any, tmp_path: Path) -> None:
    path = tiny("llama").write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"llama", b"zebra"))
    with pytest.raises(LoaderError, match=r"'zebra' is not known \(known: llama, qwen2, qwen3\)"):
        describe(path, NoOptions())


def test_an_adapter_is_not_a_model(tiny: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    model.general = {"general.type": "adapter"}
    with pytest.raises(LoaderError, match="is of type 'adapter', not a model"):
        described(model, tmp_path)


def test_heads_of_each_layer_must_agree(tiny: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    model.kv_heads = [2, 2]
    assert described(model, tmp_path).config["num_key_value_heads"] == 2
    model.kv_heads = [2, 1]
    with pytest.raises(LoaderError, match="head_count_kv differs between layers"):
        described(model, tmp_path)


def test_tokenizer_of_the_file(tiny: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    model.general = {
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.eom_token_id": 2,
    }
    description = described(model, tmp_path)
    data = description.tokenizer
    assert data is not None
    tokenizer = Tokenizer.from_str(data.json())
    assert tokenizer.get_vocab() == {token: id_ for id_, token in enumerate(model.tokens)}
    assert [token.content for token in tokenizer.get_added_tokens_decoder().values()] == ["<unk>", "<s>", "</s>"]
    ids = tokenizer.encode("<s>").ids
    assert (ids[0], ids[-1]) == (1, 2)
    assert (data.bos, data.eos, data.chat_template) == (1, (2, 7), "{{ messages }}")
    assert description.generation == {"bos_token_id": 1, "eos_token_id": [2, 7]}


def test_what_the_file_leaves_open_follows_the_family(tiny: Any, tmp_path: Path) -> None:
    data = described(tiny("llama"), tmp_path).tokenizer
    assert data is not None
    assert data.chat_template is None
    assert Tokenizer.from_str(data.json()).encode("").ids == [1]


def test_sampling_defaults(tiny: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    model.general = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    assert described(model, tmp_path).generation == {
        "bos_token_id": 1,
        "eos_token_id": [2],
        "temperature": 0.5,
        "top_k": 20,
        "do_sample": True,
    }


def test_a_special_token_outside_the_vocabulary_is_refused(tiny: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    model.general = {"tokenizer.ggml.eot_token_id": 96}
    with pytest.raises(LoaderError, match="eot token 96 is not among its 96 tokens"):
        described(model, tmp_path)
