"""Filling parameters from a loader: concatenation, slices of ranks, casts, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest
import torch
from torch import Tensor

from srtkit.engine.weights import fill_weights, stored_scales
from srtkit.spec.errors import LoaderError, PluginBroken
from srtkit.spec.facts import Shard
from srtkit.spec.model_loader import ModelLoader, WeightInfo, WeightRequest
from srtkit.spec.models import Model, ModelInputs, ModelOutput, ModelPlan, WeightEntry

STORED = {
    "embed": torch.arange(12.0).view(6, 2),
    "q": torch.arange(100.0, 116.0).view(4, 4),
    "k": torch.arange(200.0, 208.0).view(2, 4),
    "o": torch.arange(300.0, 316.0).view(4, 4),
    "q.bias": torch.arange(4.0),
    "k.bias": torch.arange(10.0, 12.0),
}


class Slots(Model):
    def __init__(self, plan: ModelPlan) -> None:
        dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
        self.tensors = {
            entry.parameter: torch.full(entry.shape, float("nan"), dtype=dtypes[entry.dtype])
            for entry in plan.weights
            if not entry.tied_to
        }

    def run(self, inputs: ModelInputs) -> ModelOutput:
        raise AssertionError("not run here")

    def slots(self) -> Mapping[str, Tensor]:
        return self.tensors

    def pack(self) -> None:
        raise AssertionError("not packed here")


class Memory(ModelLoader):
    """Answers in reverse order, through one buffer that the next answer overwrites."""

    def __init__(self, stored: Mapping[str, Tensor]) -> None:
        self.stored = stored
        self.asked: list[WeightRequest] = []

    def index(self) -> Sequence[WeightInfo]:
        return [WeightInfo(name, tuple(tensor.shape), "float32") for name, tensor in self.stored.items()]

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[tuple[WeightRequest, Tensor]]:
        self.asked = list(requests)
        buffer = torch.empty(64)
        for request in reversed(self.asked):
            part = self.stored[request.name]
            if request.dim is not None:
                part = part.narrow(request.dim, request.start, request.stop - request.start)
            answer = buffer[: part.numel()].view(part.shape).copy_(part)
            yield request, answer
            buffer.fill_(-1)

    def close(self) -> None:
        self.stored = {}


def make_plan(world: int = 1, dtype: str = "float32") -> ModelPlan:
    qkv = ((4, 4), (2, 4))
    return ModelPlan(
        architecture="Tiny",
        dtype=dtype,
        vocab_size=6,
        hidden_size=2,
        max_context=8,
        attention={},
        weights=(
            WeightEntry("embedding", (6, 2), dtype, ("embed",), ((6, 2),)),
            WeightEntry("qk", (6 // world, 4), dtype, ("q", "k"), qkv, slice_dim=0),
            WeightEntry("qk.bias", (6 // world,), dtype, ("q.bias", "k.bias"), ((4,), (2,)), slice_dim=0),
            WeightEntry("o", (4, 4 // world), dtype, ("o",), ((4, 4),), slice_dim=1),
            WeightEntry("head", (6, 2), dtype, ("head",), ((6, 2),), tied_to="embedding"),
        ),
        ignored=(".inv_freq",),
    )


def fill(plan: ModelPlan, stored: Mapping[str, Tensor] = STORED, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
    model = Slots(plan)
    fill_weights(model, plan, Memory(stored), Shard(rank, world))
    return model.tensors


def test_whole_parameters_are_concatenated() -> None:
    filled = fill(make_plan())
    assert torch.equal(filled["embedding"], STORED["embed"])
    assert torch.equal(filled["qk"], torch.cat((STORED["q"], STORED["k"])))
    assert torch.equal(filled["qk.bias"], torch.cat((STORED["q.bias"], STORED["k.bias"])))
    assert torch.equal(filled["o"], STORED["o"])


def test_each_rank_takes_its_part_of_every_source() -> None:
    for rank in range(2):
        filled = fill(make_plan(world=2), rank=rank, world=2)
        q, k = STORED["q"][2 * rank : 2 * rank + 2], STORED["k"][rank : rank + 1]
        assert torch.equal(filled["embedding"], STORED["embed"])
        assert torch.equal(filled["qk"], torch.cat((q, k)))
        assert torch.equal(filled["qk.bias"], torch.tensor([2.0 * rank, 2.0 * rank + 1, 10.0 + rank]))
        assert torch.equal(filled["o"], STORED["o"][:, 2 * rank : 2 * rank + 2])


def test_a_rank_asks_for_its_slice_only() -> None:
    plan, loader = make_plan(world=2), Memory(STORED)
    fill_weights(Slots(plan), plan, loader, Shard(1, 2))
    assert WeightRequest("q", 0, 2, 4, shape=(4, 4)) in loader.asked
    assert WeightRequest("o", 1, 2, 4, shape=(4, 4)) in loader.asked
    assert WeightRequest("embed", shape=(6, 2)) in loader.asked


def test_values_are_cast_to_the_slot() -> None:
    filled = fill(make_plan(dtype="bfloat16"))
    assert torch.equal(filled["o"], STORED["o"].bfloat16())


def test_progress_ends_at_the_total() -> None:
    plan, seen = make_plan(), []
    fill_weights(Slots(plan), plan, Memory(STORED), Shard(), lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (plan.weight_bytes, plan.weight_bytes)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({key: STORED[key] for key in STORED if key != "k"}, r"1 weights of Tiny are not in the source: k"),
        (STORED | {"k": torch.zeros(3, 4)}, r"k is stored as \(3, 4\), the config asks for \(2, 4\)"),
        (STORED | {"q.scale": torch.zeros(1)}, r"1 stored weights are unknown to Tiny: q\.scale"),
    ],
    ids=["missing", "shape", "leftover"],
)
def test_a_source_that_does_not_fit_is_refused(stored: dict[str, Tensor], message: str) -> None:
    with pytest.raises(LoaderError, match=message):
        fill(make_plan(), stored)


def test_a_stored_tied_head_and_what_the_model_ignores_are_fine() -> None:
    filled = fill(make_plan(), STORED | {"head": torch.zeros(6, 2), "layer.rotary.inv_freq": torch.zeros(4)})
    assert torch.equal(filled["embedding"], STORED["embed"])


class Maker(Memory):
    """Has no index: it makes what it is asked for."""

    def index(self) -> Sequence[WeightInfo]:
        return ()


def test_a_source_without_an_index_is_asked_for_everything() -> None:
    plan, model = make_plan(), Slots(make_plan())
    fill_weights(model, plan, Maker(STORED | {"extra": torch.zeros(1)}), Shard())
    assert torch.equal(model.tensors["o"], STORED["o"])


class Forgetful(Memory):
    def read(self, requests: Iterable[WeightRequest]) -> Iterator[tuple[WeightRequest, Tensor]]:
        yield from list(super().read(list(requests)[:-1]))


class Repeating(Memory):
    def read(self, requests: Iterable[WeightRequest]) -> Iterator[tuple[WeightRequest, Tensor]]:
        for answer in super().read(requests):
            yield answer
            yield answer


class Careless(Memory):
    def read(self, requests: Iterable[WeightRequest]) -> Iterator[tuple[WeightRequest, Tensor]]:
        for request in requests:
            yield request, self.stored[request.name]


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (Forgetful, "never gave o"),
        (Repeating, "not asked for or given before"),
        (Careless, r"as \(4, 4\), wanted \(2, 4\)"),
    ],
)
def test_a_loader_that_breaks_its_contract_is_named(loader: type[Memory], message: str) -> None:
    plan = make_plan(world=2)
    with pytest.raises(PluginBroken, match=message):
        fill_weights(Slots(plan), plan, loader(STORED), Shard(0, 2))


def test_a_model_without_the_slot_is_named() -> None:
    plan = make_plan()
    model = Slots(plan)
    model.tensors["o"] = torch.zeros(4, 5)
    with pytest.raises(PluginBroken, match=r"models:Tiny.*o \(4, 4\) has a slot of \(4, 5\)"):
        fill_weights(model, plan, Memory(STORED), Shard())


def test_scales_of_kv_among_the_weights_are_no_parameters() -> None:
    scales = {"layers.3.attn.k_scale": torch.tensor([0.5]), "layers.3.attn.v_scale": torch.tensor(0.25)}
    plan, loader = make_plan(), Memory(STORED | scales)
    fill_weights(Slots(plan), plan, loader, Shard())
    assert stored_scales(loader) == {"layers.3.attn.k_scale": 0.5, "layers.3.attn.v_scale": 0.25}
    with pytest.raises(LoaderError, match=r"single heads.*3\.k_scale"):
        stored_scales(Memory({"layers.3.k_scale": torch.ones(2)}))
