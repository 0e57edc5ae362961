"""A model with random weights, and its steps over sequences. Knows no check and no architecture.

Memory that a model allocates holds NaN at first, so that a parameter which nobody fills shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.attention import LayerHandle
from srtkit.spec.facts import Shard
from srtkit.spec.layers import DTYPES, Binding, RecurrentBinding, bound
from srtkit.spec.models import Model, ModelBuild, ModelInputs, ModelOutput, ModelPlan
from srtkit.spec.platform import Communicator
from srtkit.spec.recurrent import RecurrentLayer
from srtkit_conformance.check import Failed, expect
from srtkit_conformance.kits.models.attention import PADDING, Lengths, WholeSequences
from srtkit_conformance.kits.models.configs import Config
from srtkit_conformance.kits.models.operators import PlainOps
from srtkit_conformance.kits.models.recurrence import RecurrentLengths, WholeStates
from srtkit_conformance.target import Target

TOLERANCE = 2e-5
"""Relative difference of logits in float32 that the order of sums explains."""
MAX_TOKENS = 64
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Making:
    """How a model is made. `keeps`: its linears work on the loaded weights."""

    dtype: str = "float32"
    keeps: bool = False
    taps: tuple[int, ...] = ()
    shard: Shard = Shard()
    communicator: Communicator | None = None


@dataclass
class Rig:
    """A built model. `step` may be called once it is filled; sequences are numbered from 1."""

    model: Model
    plan: ModelPlan
    making: Making
    device: torch.device
    _table: list[Binding | RecurrentBinding | None] = field(default_factory=list)
    _lengths: Lengths = field(default_factory=Lengths)
    _seen: dict[int, int] = field(default_factory=dict)

    def forget(self) -> None:
        """Begin all sequences anew."""
        self._seen.clear()
        self._table = [None] * (1 + max((*self.plan.attention, *self.plan.recurrent), default=-1))
        for index, spec in self.plan.attention.items():
            self._table[index] = Binding(WholeSequences(spec), self._lengths, LayerHandle(index, {}))
        for index, weights in self.model.recurrent_weights().items():
            layer, inputs = RecurrentLayer(index, {}, weights), self.plan.recurrent[index].inputs
            backend = WholeStates(self.plan.recurrent[index])
            self._table[index] = RecurrentBinding(backend, RecurrentLengths(self._lengths), layer, inputs)

    def fill(self, weights: Weights) -> None:
        """Load: every slot from its sources, this rank's part of each, then `pack`. Sequences begin anew."""
        slots = self.model.slots()
        for entry in self.plan.weights:
            if entry.tied_to:
                continue
            expect(entry.parameter in slots, "a parameter of the weight map has no slot", observed=entry.parameter)
            parts = [weights[name] for name in entry.sources]
            world, rank = self.making.shard.world, self.making.shard.rank
            if entry.slice_dim is not None and world > 1:
                parts = [part.chunk(world, entry.slice_dim)[rank] for part in parts]
            slots[entry.parameter].copy_(torch.cat(parts))
        self.model.pack()
        self.forget()

    def inputs(self, rows: Sequence[tuple[int, Sequence[int]]], wanted: Sequence[int] | None = None) -> ModelInputs:
        """The next tokens of sequences; `wanted` are indices of tokens, None for all."""
        self._lengths.rows = [(sequence, len(ids)) for sequence, ids in rows]
        starts = [0 if sequence == PADDING else self._seen.get(sequence, 0) for sequence, _ in rows]
        for (sequence, ids), start in zip(rows, starts, strict=True):
            self._seen[sequence] = start + len(ids)
        flat = [token for _, ids in rows for token in ids]
        places = [start + n for (_, ids), start in zip(rows, starts, strict=True) for n in range(len(ids))]
        wanted = range(len(flat)) if wanted is None else wanted
        columns = [torch.tensor(list(one), dtype=torch.int32, device=self.device) for one in (flat, places, wanted)]
        return ModelInputs(columns[0], columns[1].unsqueeze(0), columns[2])

    def run(self, inputs: ModelInputs) -> ModelOutput:
        """One forward."""
        with bound(self._table):
            return self.model.run(inputs)

    def step(self, *rows: tuple[int, Sequence[int]], wanted: Sequence[int] | None = None) -> ModelOutput:
        """Inputs, and a forward over them."""
        return self.run(self.inputs(rows, wanted))


def make(target: Target, config: Config, device: torch.device, making: Making = Making()) -> Rig:
    """A model, built and not filled."""
    plan = target.descriptor.plan(config.request(making.dtype, making.shard))
    ops, shard = PlainOps(making.keeps), making.shard
    build = ModelBuild(plan, config.keys, device, ops, shard, MAX_TOKENS, making.communicator, making.taps)
    with poisoned_memory():
        return Rig(target.descriptor.build(build), plan, making, device)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Let `torch.empty` give NaN."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def random_weights(plan: ModelPlan, rng: np.random.Generator) -> dict[str, Tensor]:
    """Float32 weights under their stored names; `plan` is that of one rank. Results keep their size over layers."""
    weights: dict[str, Tensor] = {}
    for entry in plan.weights:
        for name, shape in zip(entry.sources, entry.source_shapes, strict=True):
            vector = len(shape) == 1
            drawn = rng.uniform(0.5, 1.5, shape) if vector else rng.standard_normal(shape) * shape[-1] ** -0.5
            weights.setdefault(name, torch.from_numpy(drawn).float())
    return weights


def tokens(plan: ModelPlan, rng: np.random.Generator, count: int) -> list[int]:
    """Random ids."""
    return [int(one) for one in rng.integers(0, plan.vocab_size, count)]


def near(found: Tensor, wanted: Tensor, what: str, limit: float = TOLERANCE) -> float:
    """The relative difference. Raises `Failed` above `limit`, and for another shape."""
    if found.shape != wanted.shape:
        raise Failed(f"{what}: another shape", observed=tuple(found.shape), limit=tuple(wanted.shape))
    exact = found.cpu().double()
    difference = float((exact - wanted.cpu().double()).norm() / (wanted.cpu().double().norm() + 1e-30))
    if not difference <= limit:
        raise Failed(what, observed=f"{difference:.3g}", limit=limit)
    return difference


@contextmanager
def device_of(target: Target) -> Iterator[torch.device]:
    """The device under test, one thread, inference mode as the engine runs."""
    platform, threads = target.platform(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            yield platform.device(target.device_index)
    finally:
        torch.set_num_threads(threads)
        platform.close()


def filled(target: Target, config: Config, device: torch.device, making: Making = Making()) -> Rig:
    """A model with the random weights of the seed."""
    rig = make(target, config, device, making)
    rig.fill(random_weights(target.descriptor.plan(config.request()), target.rng(config.name)))
    return rig


def form(tensor: Tensor) -> str:
    """Shape and dtype, for messages."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def check_form(rig: Rig, output: ModelOutput, wanted: int, count: int) -> None:
    """Raise `Failed` unless the output has the contract's form for `wanted` rows of logits and `count` tokens."""
    plan, logits, hidden = rig.plan, output.logits, output.hidden
    right = logits.shape == (wanted, plan.vocab_size) and logits.dtype in (torch.float32, DTYPES[plan.dtype])
    what = "logits are not [N, vocab] in float32 or the model's dtype"
    expect(right, what, observed=form(logits), limit=(wanted, plan.vocab_size))
    right = hidden.shape == (count, plan.hidden_size) and hidden.dtype == DTYPES[plan.dtype]
    expect(right, "hidden is not [T, H] in the model's dtype", observed=form(hidden), limit=(count, plan.hidden_size))
