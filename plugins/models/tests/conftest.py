"""What the tests of this folder share: weights from memory, a plain attention backend, ranks in threads.

All of it is real code on real numbers; only storage and pages are left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from platform import machine
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import srtkit_plugin_models
import srtkit_plugin_ops_cpu
import srtkit_plugin_platform_cpu
import srtkit_plugin_recurrent_torch
from srtkit.engine.ops import Binder, Offer
from srtkit.engine.weights import fill_weights
from srtkit.spec.attention import (
    AttentionBackend,
    AttentionParts,
    AttentionPlan,
    AttentionSpec,
    Batch,
    GroupView,
    LayerHandle,
    Rows,
)
from srtkit.spec.facts import DeviceFacts, Limits, Shard
from srtkit.spec.layers import DTYPES, Binding, RecurrentBinding, bound
from srtkit.spec.model_loader import ModelLoader, WeightInfo, WeightRequest
from srtkit.spec.models import Model, ModelBuild, ModelInputs, ModelOutput, PlanRequest
from srtkit.spec.platform import Communicator, PlatformBuild
from srtkit.spec.recurrent import RecurrentBackend, RecurrentBuild, RecurrentLayer, RecurrentPlan, RecurrentSpec
from srtkit_plugin_ops_cpu.provider import CpuOps

PACKS_BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
CPU = DeviceFacts("cpu", "this one", machine(), extra={"isa": "avx512f" if PACKS_BF16 else ""})


class StateLoader(ModelLoader):
    """Serves a state dict; a name that shares its storage with the embedding is left out, as files do."""

    def __init__(self, state: Mapping[str, Tensor], tied: bool) -> None:
        self.state = {name: tensor for name, tensor in state.items() if not (tied and name == "lm_head.weight")}

    def index(self) -> Sequence[WeightInfo]:
        return [WeightInfo(name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in self.state.items()]

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[tuple[WeightRequest, Tensor]]:
        for request in sorted(requests, key=lambda one: (one.name, one.start)):
            tensor = self.state[request.name]
            if request.dim is not None:
                tensor = tensor.narrow(request.dim, request.start, request.stop - request.start)
            yield request, tensor

    def close(self) -> None:
        self.state = {}


class DensePlan(AttentionPlan):
    """The query lengths of a step's rows."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def close(self) -> None:
        self.lengths = []


class DenseBackend(AttentionBackend):
    """Attention over whole tensors kept per layer and row; row i of every step is the same sequence."""

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec
        self.stored: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def new_plan(self, limits: Limits) -> DensePlan:
        return DensePlan()

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        raise AssertionError("the tests set the lengths themselves")

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        assert isinstance(plan, DensePlan)
        if self.spec.mla is not None:  # latent and rotated part: one key of both, the latent is the value
            k, v = torch.cat((k, v), -1).unsqueeze(1), k.unsqueeze(1)
        parts = zip(k.split(plan.lengths), v.split(plan.lengths), strict=True)
        for row, (new_k, new_v) in enumerate(parts):
            old_k, old_v = self.stored.get((layer.index, row), (new_k[:0], new_v[:0]))
            self.stored[layer.index, row] = torch.cat((old_k, new_k)), torch.cat((old_v, new_v))

    def attend(
        self,
        plan: AttentionPlan,
        layer: LayerHandle,
        q: Tensor,
        out: Tensor,
        *,
        rows: Rows = Rows.ALL,
        fresh: tuple[Tensor, Tensor] | None = None,
        lse: Tensor | None = None,
    ) -> None:
        assert isinstance(plan, DensePlan)
        group = self.spec.q_heads // self.spec.kv_heads
        for row, (one_q, one_out) in enumerate(zip(q.split(plan.lengths), out.split(plan.lengths), strict=True)):
            k, v = (x.repeat_interleave(group, 1).float() for x in self.stored[layer.index, row])
            scores = torch.einsum("qhd,khd->hqk", one_q.float(), k) * self.spec.scale
            if self.spec.soft_cap:
                scores = self.spec.soft_cap * torch.tanh(scores / self.spec.soft_cap)
            last = torch.arange(len(k) - len(one_q), len(k)).unsqueeze(1)
            tokens = torch.arange(len(k))
            hidden = tokens > last
            if self.spec.window:
                hidden |= tokens <= last - self.spec.window
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            one_out.copy_(torch.einsum("hqk,khd->qhd", weights, v))

    def parts(self) -> AttentionParts:
        return AttentionParts()

    def close(self) -> None:
        self.stored.clear()


ROWS = 4
"""Sequences of a runner, at most: each has the state slot after its number."""


@dataclass
class States:
    """`recurrent:torch` over one slot a row."""

    backend: RecurrentBackend
    plan: RecurrentPlan

    def fill(self, lengths: Sequence[int]) -> None:
        """The step's rows: row i steps the state in slot i + 1."""
        rows, tokens = len(lengths), sum(lengths)
        empty, host = torch.empty(0, dtype=torch.int32), np.array(lengths, np.int32)
        batch = Batch(rows, tokens, 0, 0, empty, empty, empty, empty, host, host)
        self.backend.fill(self.plan, batch, torch.arange(1, rows + 1, dtype=torch.int32), None, 0)


def bind_states(specs: Mapping[int, RecurrentSpec], model: Model) -> tuple[States | None, dict[int, RecurrentBinding]]:
    """The recurrent layers of a packed model over fresh, zeroed states."""
    if not specs:
        return None, {}
    plugin, spec = srtkit_plugin_recurrent_torch.srtkit_recurrent(), next(iter(specs.values()))
    limits = Limits(max_rows=ROWS, max_tokens=64, max_context=64, page_size=16)
    cpu = srtkit_plugin_platform_cpu.srtkit_platform()
    platform = cpu.build(PlatformBuild(cpu.probe(cpu.options())[0], cpu.options()))
    given = RecurrentBuild(spec, tuple(specs), limits, platform, 0, plugin.options())
    backend = plugin.build(given)
    states = States(backend, backend.new_plan(limits))
    bindings = {}
    for index, weights in model.recurrent_weights().items():
        planes = {
            one.name: torch.zeros(1 + ROWS, *one.shape, dtype=DTYPES[one.dtype]) for one in plugin.state_layouts(spec)
        }
        bindings[index] = RecurrentBinding(backend, states.plan, RecurrentLayer(index, planes, weights), spec.inputs)
    return states, bindings


@dataclass
class Runner:
    """A filled and packed model with its sequences. `step` takes the new ids of each row."""

    model: Model
    table: list[Binding | RecurrentBinding | None]
    plan: DensePlan
    states: States | None = None
    positions: dict[int, int] = field(default_factory=dict)

    def step(self, *rows: Sequence[int], embeds: Tensor | None = None, embed_mask: Tensor | None = None) -> ModelOutput:
        """Logits of every token."""
        self.plan.lengths = [len(ids) for ids in rows]
        if self.states is not None:
            self.states.fill(self.plan.lengths)
        starts = [self.positions.get(row, 0) for row in range(len(rows))]
        places = [torch.arange(start, start + len(ids)) for start, ids in zip(starts, rows, strict=True)]
        self.positions.update({row: starts[row] + len(ids) for row, ids in enumerate(rows)})
        flat = torch.tensor([token for ids in rows for token in ids])
        inputs = ModelInputs(flat, torch.cat(places).unsqueeze(0), torch.arange(len(flat)), embeds, embed_mask)
        with bound(self.table), torch.inference_mode():
            return self.model.run(inputs)


class ThreadSum(Communicator):
    """One rank's end of a group whose ranks are threads."""

    def __init__(self, barrier_: threading.Barrier, shared: list[Tensor | None], rank: int) -> None:
        self._meet, self._shared, self._rank = barrier_, shared, rank

    def all_reduce(self, tensor: Tensor) -> None:
        self._shared[self._rank] = tensor.clone()
        self._meet.wait(30)
        tensor.copy_(torch.stack([one for one in self._shared if one is not None]).sum(0))
        self._meet.wait(30)

    def all_gather(self, out: Tensor, tensor: Tensor) -> None:
        raise NotImplementedError

    def broadcast(self, tensor: Tensor, source: int) -> None:
        raise NotImplementedError

    def send(self, tensor: Tensor, target: int) -> None:
        raise NotImplementedError

    def recv(self, tensor: Tensor, source: int) -> None:
        raise NotImplementedError

    def barrier(self, timeout: float) -> None:
        self._meet.wait(timeout)

    def abort(self) -> None:
        self._meet.abort()


@dataclass(frozen=True)
class Making:
    """How a model is made. `fast` takes the operators of the CPU plugin, else the references."""

    dtype: str = "float32"
    fast: bool = True
    world: int = 1
    taps: tuple[int, ...] = ()


def make_runners(config: Mapping[str, Any], state: Mapping[str, Tensor], making: Making) -> list[Runner]:
    """One runner a rank."""
    offers = [Offer("cpu", srtkit_plugin_ops_cpu.srtkit_ops(), CpuOps())] if making.fast else []
    shared: list[Tensor | None] = [None] * making.world
    barrier = threading.Barrier(making.world)
    runners = []
    for rank in range(making.world):
        shard = Shard(rank, making.world)
        plan = srtkit_plugin_models.plan(PlanRequest(config, making.dtype, "auto", shard))
        model = srtkit_plugin_models.build(
            ModelBuild(
                plan=plan,
                config=config,
                device=torch.device("cpu"),
                ops=Binder(offers, CPU),
                shard=shard,
                max_tokens=64,
                communicator=ThreadSum(barrier, shared, rank) if making.world > 1 else None,
                taps=making.taps,
            )
        )
        fill_weights(model, plan, StateLoader(state, bool(config.get("tie_word_embeddings"))), shard)
        model.pack()
        steps = DensePlan()
        states, bindings = bind_states(plan.recurrent, model)
        table: list[Binding | RecurrentBinding | None] = [
            bindings[index]
            if index in bindings
            else Binding(DenseBackend(plan.attention[index]), steps, LayerHandle(index, {}))
            for index in range(len(plan.attention) + len(bindings))
        ]
        runners.append(Runner(model, table, steps, states))
    return runners


@dataclass(frozen=True)
class Tools:
    """The above, handed to tests as one fixture."""

    make: Callable[..., Runner]
    make_ranks: Callable[..., list[Runner]]
    loader: type[StateLoader]
    cpu: DeviceFacts


@pytest.fixture(scope="session")
def tools() -> Tools:
    def make(config: Mapping[str, Any], state: Mapping[str, Tensor], **how: Any) -> Runner:
        return make_runners(config, state, Making(**how))[0]

    def make_ranks(config: Mapping[str, Any], state: Mapping[str, Tensor], **how: Any) -> list[Runner]:
        return make_runners(config, state, Making(**how))

    return Tools(make, make_ranks, StateLoader, CPU)


@pytest.fixture
def together() -> Iterator[Callable[..., list[Any]]]:
    """Runs one call for each rank at once and gives their results."""
    with ThreadPoolExecutor(4) as pool:

        def run(calls: Sequence[Callable[[], Any]]) -> list[Any]:
            return [future.result(60) for future in [pool.submit(call) for call in calls]]

        yield run
