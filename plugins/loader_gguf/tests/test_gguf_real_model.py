"""The quick-start model, compared with what transformers reads out of the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.model_loader import ModelLoaderBuild, WeightRequest
from srtkit_plugin_loader_gguf import srtkit_model_loader

# transformers goes through the `gguf` package's own reader, which takes seconds for each opening.
pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Any:
    """The config that transformers makes of the file."""
    return AutoConfig.from_pretrained(smollm2.parent, gguf_file=smollm2.name)


def test_config_equals_that_of_transformers(smollm2: Path, reference: Any) -> None:
    config = srtkit_model_loader().describe(smollm2, NoOptions()).config
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
        "rms_norm_eps",
        "hidden_act",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "bos_token_id",
    ):
        assert config[key] == getattr(reference, key), key
    assert config["rope_parameters"]["rope_theta"] == reference.rope_parameters["rope_theta"] == 100000.0
    assert config["rope_parameters"]["rope_type"] == reference.rope_parameters["rope_type"] == "default"
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["eos_token_id"] == [2]
    assert config["tie_word_embeddings"] is True


@pytest.mark.full
def test_weights_equal_those_of_transformers(smollm2: Path, reference: Any) -> None:
    plugin = srtkit_model_loader()
    config = plugin.describe(smollm2, NoOptions()).config
    loader = plugin.build(ModelLoaderBuild(path=smollm2, options=NoOptions(), config=config))
    with torch.device("meta"):
        shapes = AutoModelForCausalLM.from_config(reference)
    expected = load_gguf_checkpoint(smollm2, return_tensors=True, model_to_load=shapes)["tensors"]
    assert shapes.state_dict().keys() - expected.keys() == {"lm_head.weight"}  # tied
    requests = [WeightRequest(name, shape=tuple(tensor.shape)) for name, tensor in expected.items()]
    seen = set()
    for request, tensor in loader.read(requests):
        assert torch.equal(tensor, expected[request.name]), request.name
        seen.add(request.name)
    assert seen == expected.keys() == {info.name for info in loader.index()}
    loader.close()


def test_tokenizer_of_the_file(smollm2: Path) -> None:
    data = srtkit_model_loader().describe(smollm2, NoOptions()).tokenizer
    assert data is not None
    tokenizer = json.loads(data.json())
    model = tokenizer["model"]
    assert (model["type"], len(model["vocab"]), len(model["merges"])) == ("BPE", 49152, 48900)
    assert tokenizer["post_processor"] is None  # the file says that no BOS is added
    assert (data.bos, data.eos) == (1, (2,))
    assert data.chat_template is not None
    assert "<|im_start|>" in data.chat_template
