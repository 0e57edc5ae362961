"""The model's logits against the formulas written out in float64; the weight map against the module."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from srtkit.spec.attention import AttentionBackend, AttentionSpec, LayerHandle
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import Limits, Shard
from srtkit.spec.layers import Binding, bound
from srtkit.spec.models import Model, ModelBuild, ModelInputs, PlanRequest
from srtkit.spec.ops import OpBinder
from srtkit_plugin_models_my_plugin import srtkit_models
from srtkit_plugin_models_my_plugin.plan import ARCHITECTURE

DESCRIPTOR = srtkit_models()
CONFIG: dict[str, Any] = {
    "architectures": [ARCHITECTURE],
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
}
REQUEST = PlanRequest(CONFIG, "float32", "float32")
IDS = [3, 17, 60, 5, 5, 42, 8, 29, 0, 33, 11]
LIMITS = Limits(max_rows=1, max_tokens=16, max_context=64, page_size=16)
Weights = Mapping[str, Tensor]


def stored_weights(seed: int) -> Weights:
    """Random weights under their stored names."""
    random = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=random) * (1.0 if len(shape) == 1 else shape[-1] ** -0.5)
        for entry in DESCRIPTOR.plan(REQUEST).weights
        for name, shape in zip(entry.sources, entry.source_shapes, strict=True)
    }


def load(model: Model, weights: Weights) -> None:
    """What core does after a build, and again after a reload."""
    slots = model.slots()
    for entry in DESCRIPTOR.plan(REQUEST).weights:
        assert slots[entry.parameter].shape == entry.shape
        slots[entry.parameter].copy_(torch.cat([weights[name] for name in entry.sources]))
    model.pack()


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def rotated(x: Tensor) -> Tensor:
    """Pairs (i, i + 4) of every head turned by position * theta ** (-i / 4), as complex numbers."""
    angles = torch.outer(torch.arange(len(x)), 100.0 ** (-torch.arange(4) / 4)).double()
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    return torch.cat((turned.real, turned.imag), -1)


@functools.cache
def wanted_logits(seed: int) -> Tensor:
    """Logits of every token with the weights of `seed`, from the formulas."""
    w = {name: weight.double() for name, weight in stored_weights(seed).items()}
    x = w["model.embed_tokens.weight"][torch.tensor(IDS)]
    for layer in ("model.layers.0", "model.layers.1"):
        h = norm(x, w[f"{layer}.input_layernorm.weight"])
        q, k, v = (
            (h @ w[f"{layer}.self_attn.{name}_proj.weight"].T).view(len(IDS), heads, 8)
            for name, heads in (("q", 4), ("k", 2), ("v", 2))
        )
        q, k = rotated(q), rotated(k)
        attended = []
        for head in range(4):
            scores = q[:, head] @ k[:, head // 2].T / 8**0.5
            hidden = torch.ones(len(IDS), len(IDS)).triu(1).bool()
            attended.append(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v[:, head // 2])
        x = x + torch.cat(attended, -1) @ w[f"{layer}.self_attn.o_proj.weight"].T
        h = norm(x, w[f"{layer}.post_attention_layernorm.weight"])
        gate, up = (h @ w[f"{layer}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate * gate.sigmoid() * up) @ w[f"{layer}.mlp.down_proj.weight"].T
    return norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def make(ops: OpBinder, **changes: Any) -> Model:
    build = ModelBuild(DESCRIPTOR.plan(REQUEST), CONFIG, torch.device("cpu"), ops, Shard(), LIMITS.max_tokens)
    return DESCRIPTOR.build(dataclasses.replace(build, **changes))


def inputs(ids: Sequence[int], start: int) -> ModelInputs:
    positions = torch.arange(start, start + len(ids), dtype=torch.int32)
    rows = torch.arange(len(ids), dtype=torch.int32)
    return ModelInputs(torch.tensor(ids, dtype=torch.int32), positions.unsqueeze(0), rows)


@pytest.mark.parametrize("chunks", [[11], [4, 6, 1], [1] * 11], ids=["whole", "chunks", "one by one"])
def test_logits_after_loading_and_after_a_reload(
    chunks: list[int], ops: OpBinder, one_sequence: Callable[[AttentionSpec], AttentionBackend]
) -> None:
    model = make(ops)
    for seed in (1, 2):
        load(model, stored_weights(seed))
        table: list[Binding | None] = []
        for index, spec in DESCRIPTOR.plan(REQUEST).attention.items():
            backend = one_sequence(spec)
            table.append(Binding(backend, backend.new_plan(LIMITS), LayerHandle(index, {})))
        found, start = [], 0
        with bound(table), torch.inference_mode():
            for count in chunks:
                found.append(model.run(inputs(IDS[start : start + count], start)).logits)
                start += count
        wanted = wanted_logits(seed)
        assert (torch.cat(found).double() - wanted).norm() / wanted.norm() < 1e-5


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"rope_theta": None}, "rope_theta"),
        ({"num_attention_heads": 5}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_its_key(change: dict[str, Any], cause: str) -> None:
    config = {key: value for key, value in (CONFIG | change).items() if value is not None}
    with pytest.raises(Unsupported, match=cause):
        DESCRIPTOR.plan(dataclasses.replace(REQUEST, config=config))


def test_what_it_does_not_do_is_refused(ops: OpBinder) -> None:
    with pytest.raises(Unsupported, match="ranks"):
        DESCRIPTOR.plan(dataclasses.replace(REQUEST, shard=Shard(0, 2)))
    with pytest.raises(Unsupported, match="hidden states"):
        make(ops, taps=(0,))
    with pytest.raises(Unsupported, match="token ids only"):
        make(ops).run(dataclasses.replace(inputs([1], 0), hidden=torch.zeros(1, 32)))
