"""Both ways of multiplying by experts against a loop over tokens, without a device; and that neither reads it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from srtkit.engine.ops import Binder
from srtkit.spec.errors import EngineError
from srtkit.spec.facts import DeviceFacts, Shard
from srtkit.spec.models import ModelBuild, PlanRequest
from srtkit.spec.ops import OpBinder
from srtkit_plugin_models.config import ExpertsConfig
from srtkit_plugin_models.experts import TOKENS, Experts, TorchExperts, groups_without_host, route
from srtkit_plugin_models.plan import plan

HIDDEN, CONFIG = 16, ExpertsConfig(count=5, per_token=2, size=24, renormalised=True)
TINY = {
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 8,
    "hidden_size": HIDDEN,
    "intermediate_size": CONFIG.size,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_local_experts": CONFIG.count,
}
Multiply = Callable[[TorchExperts, Tensor, Tensor], Tensor]
WAYS: dict[str, Multiply] = {"by group": TorchExperts.by_group, "by all": TorchExperts.by_all}


def layer(dtype: str = "float32", ops: OpBinder | None = None) -> Experts:
    """With random weights, not packed yet."""
    torch.manual_seed(0)
    binder = ops or Binder((), DeviceFacts("cpu", "this one", "x86_64"))
    build = ModelBuild(plan(PlanRequest(TINY, dtype, "auto")), TINY, torch.device("cpu"), binder, Shard(), max_tokens=8)
    experts = Experts(build, HIDDEN, CONFIG)
    for tensor in experts.parameters().values():
        tensor.normal_()
    return experts


def made(dtype: str = "float32") -> TorchExperts:
    """The operator, with its weights."""
    experts = layer(dtype)
    experts.pack()
    assert isinstance(experts.op, TorchExperts)
    return experts.op


class Own(TorchExperts):
    """As a provider that keeps its own form of the weights, and takes numbers of 32 bits."""

    def pack(self, gate_up: Tensor, down: Tensor) -> bool:
        super().pack(gate_up.clone(), down.clone())
        return False

    def __call__(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        return super().__call__(x, weights, experts.int())


class Provided(Binder):
    """Where a provider has "experts", of the sizes that are asked for."""

    asked: dict[str, int]

    def op_or(self, reference: Any, name: str, dtype: str, **sizes: int) -> Any:
        if name != "experts":
            return super().op_or(reference, name, dtype, **sizes)
        self.asked = sizes
        return Own(self.op("silu_mul", dtype, hidden=sizes["size"]))


def test_weights_are_dropped_where_a_provider_has_its_own_form_and_loaded_again() -> None:
    ops = Provided((), DeviceFacts("cpu", "this one", "x86_64"))
    ours, theirs, x = layer(), layer(ops=ops), torch.randn(3, HIDDEN)
    assert ops.asked == {"experts": 5, "per_token": 2, "hidden": HIDDEN, "size": 24}
    with torch.no_grad():
        for one in (ours, theirs):
            one.gate.weight.copy_(torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1)))
            one.gate.pack()
            one.pack()
    assert theirs.weights is None
    assert ours.weights is not None
    torch.testing.assert_close(theirs(x), ours(x))
    with pytest.raises(EngineError, match="packed twice"):
        theirs.pack()
    for tensor in theirs.parameters().values():
        tensor.zero_()
    theirs.pack()
    assert not theirs(x).any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tokens", [0, 1, 7, TOKENS + 3])
def test_every_chosen_expert_says_what_its_mlp_does(way: str, tokens: int) -> None:
    experts, x = made(), torch.randn(tokens, HIDDEN)
    chosen = torch.rand(tokens, CONFIG.count).topk(2).indices
    chosen[chosen == 3] = 0  # nobody's; and twice the same
    found = WAYS[way](experts, x, chosen)
    assert found.shape == (tokens, 2, HIDDEN)
    for token, k in ((token, k) for token in range(tokens) for k in range(2)):
        gate, up = (experts.gate_up[chosen[token, k]] @ x[token]).chunk(2)
        wanted = experts.down[chosen[token, k]] @ (F.silu(gate) * up)
        torch.testing.assert_close(found[token, k], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_a_token_is_not_harmed_by_experts_and_tokens_that_are_not_its_own(way: str) -> None:
    """As of a padded row, or of an expert whose products overflow in float16."""
    experts, x = made(), torch.randn(3, HIDDEN)
    experts.down[4] = float("inf")
    x[2] = float("nan")
    said = WAYS[way](experts, x, torch.tensor([[0, 1], [2, 3], [4, 0]]))
    assert said[:2].isfinite().all()


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_read_back(way: str) -> None:
    """Tensors without values have none to read: whatever wants one raises."""
    with FakeTensorMode():
        experts, x = made("bfloat16"), torch.empty(9, HIDDEN, dtype=torch.bfloat16)
        _, chosen = route(torch.empty(9, CONFIG.count, dtype=torch.bfloat16), 2, True)
        said = WAYS[way](experts, x, chosen)
    assert (said.shape, said.dtype) == ((9, 2, HIDDEN), torch.bfloat16)


@pytest.mark.parametrize("renormalised", [True, False])
def test_weights_are_a_softmax_over_all(renormalised: bool) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]], dtype=torch.bfloat16)
    weights, experts = route(logits, 2, renormalised)
    wanted = logits.double().exp()[0, [1, 3]] / (1 if renormalised else logits.double().exp().sum())
    assert experts.tolist() == [[1, 3]]
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights[0].double(), wanted / wanted.sum() if renormalised else wanted)


def test_groups_are_for_the_cpu_and_for_kernels_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    capability = (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    assert groups_without_host(cpu, torch.float32)
    assert groups_without_host(cuda, torch.bfloat16)
    assert not groups_without_host(cuda, torch.float16)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not groups_without_host(cuda, torch.bfloat16)
    monkeypatch.setattr(torch.version, "hip", None)
    capability = (8, 0)
    assert not groups_without_host(cuda, torch.bfloat16)
