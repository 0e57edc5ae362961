"""Backends that keep what they must not, change what is not theirs, or take what they did not declare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from srtkit.spec.attention import Batch
from srtkit.spec.errors import EngineError
from srtkit.spec.facts import Limits
from srtkit.spec.kv import Plane
from srtkit.spec.recurrent import (
    RecurrentBackend,
    RecurrentBuild,
    RecurrentDescriptor,
    RecurrentLayer,
    RecurrentPlan,
    RecurrentSpec,
    Snapshots,
)
from srtkit.spec.step_plan import Ints
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.recurrent.wrap import Fill, Wrapped, WrappedPlan, wrapped


class OnePlan(Wrapped):
    """The plan that was filled last serves all."""

    last: WrappedPlan | None = None

    def fill(
        self, plan: RecurrentPlan, batch: Batch, state_slots: Tensor, snapshots: Snapshots | None, keep: int
    ) -> None:
        """Remember it."""
        super().fill(plan, batch, state_slots, snapshots, keep)
        assert isinstance(plan, WrappedPlan)
        self.last = plan

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """As many tokens as there are."""
        assert self.last is not None
        tokens = int(self.last.filled[0].host_q.sum())
        wide = {name: torch.cat((values, values.new_zeros(tokens, values.shape[1]))) for name, values in inputs.items()}
        result = torch.cat((out, out.new_zeros(tokens, *out.shape[1:])))
        super().step(self.last, layer, wide, result)
        out.copy_(result[: len(out)])


@mutant(
    "one_plan", of="torch", sentence="the step filled last serves every plan", killed_by=("recurrent.steps.two_plans",)
)
def one_plan(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """State of a step in the backend."""
    return wrapped(descriptor, OnePlan)


class FirstWeights(Wrapped):
    """Converted once."""

    weights: Mapping[str, Tensor] | None = None

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """The first layer's for all."""
        self.weights = self.weights or layer.weights
        super().step(plan, replace(layer, weights=self.weights), inputs, out)


@mutant(
    "first_weights",
    of="torch",
    sentence="keeps the first layer's weights for all",
    killed_by=("recurrent.steps.layers",),
)
def first_weights(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Models have more than one layer."""
    return wrapped(descriptor, FirstWeights)


class OldSnapshots(Wrapped):
    """A plan's snapshots stay until there are new ones."""

    def see(self, plan: WrappedPlan, given: Fill) -> Fill:
        """Those of the fill before, as far as its rows are there."""
        batch, slots, snapshots, keep = given
        if snapshots is None and plan.given is not None and plan.given[2] is not None:
            old = plan.given[2]
            there = old.row < batch.rows
            lengths = torch.from_numpy(batch.host_q)[old.row[there].long()]
            there_and_stepped = there.nonzero().squeeze(1)[lengths > 0]
            row, target = old.row[there_and_stepped], old.target[there_and_stepped]
            snapshots = Snapshots(row, torch.from_numpy(batch.host_q)[row.long()], target)
        return batch, slots, snapshots, keep


@mutant(
    "old_snapshots",
    of="torch",
    sentence="takes the snapshots of the fill before once more where a fill has none",
    killed_by=("recurrent.steps.refill",),
)
def old_snapshots(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """A sequence that went on from a snapshot is overwritten."""
    return wrapped(descriptor, OldSnapshots)


class FirstFill(Wrapped):
    """A plan keeps the slots of its first fill for steps of the same number of rows and tokens."""

    def see(self, plan: WrappedPlan, given: Fill) -> Fill:
        """As a recording does that they were baked into."""
        batch, slots, snapshots, keep = given
        if self.first is None:
            self.first = batch, slots.clone()
        old, old_slots = self.first
        same = (batch.rows, batch.tokens) == (old.rows, old.tokens)
        return batch, old_slots if same else slots, snapshots, keep

    first: tuple[Batch, Tensor] | None = None


@mutant(
    "first_fill",
    of="torch",
    sentence="slots of the first fill are used for every step of its shape",
    killed_by=("recurrent.capture.one_token",),
)
def first_fill(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Baked into a recording."""
    return wrapped(descriptor, FirstFill)


class FirstLengths(Wrapped):
    """A plan keeps the row bounds of its first fill for steps of the same number of rows and tokens."""

    def __init__(self, inner: RecurrentBackend, build: RecurrentBuild) -> None:
        super().__init__(inner, build)
        self.bounds: dict[tuple[int, int], tuple[Tensor, Ints]] = {}

    def see(self, plan: WrappedPlan, given: Fill) -> Fill:
        """Slots and contexts are the step's own."""
        batch, slots, snapshots, keep = given
        shape = (batch.rows, batch.tokens)
        cu_q, host_q = self.bounds.setdefault(shape, (batch.cu_q.clone(), batch.host_q.copy()))
        return replace(batch, cu_q=cu_q, host_q=host_q), slots, snapshots, keep


@mutant(
    "first_lengths",
    of="torch",
    sentence="row bounds of the first fill are used for every step of its shape",
    killed_by=("recurrent.capture.mixed",),
)
def first_lengths(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Baked into a recording; decode steps cannot tell."""
    return wrapped(descriptor, FirstLengths)


class OncePlanned(Wrapped):
    """Closing a plan frees what all plans share."""

    open = True

    def new_plan(self, limits: Limits) -> RecurrentPlan:
        """Tells the backend when it is closed."""
        return _Tells(self.inner.new_plan(limits), self)

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """Not any more."""
        if not self.open:
            raise EngineError("recurrent:mutant", "its buffers are gone")
        super().step(plan, layer, inputs, out)


class _Tells(WrappedPlan):
    def __init__(self, inner: RecurrentPlan, owner: OncePlanned) -> None:
        super().__init__(inner)
        self._owner = owner

    def close(self) -> None:
        """Free too much."""
        super().close()
        self._owner.open = False


@mutant(
    "closes_all",
    of="torch",
    sentence="closing a plan frees the buffers of all",
    killed_by=("recurrent.steps.lifecycle",),
)
def closes_all(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Graph runners close plans and make others."""
    return wrapped(descriptor, OncePlanned)


class InPlace(Wrapped):
    """Computes SiLU where its argument stood."""

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """The result is right."""
        super().step(plan, layer, inputs, out)
        torch.nn.functional.silu(next(iter(inputs.values())), inplace=True)


@mutant("in_place", of="torch", sentence="changes its inputs", killed_by=("recurrent.memory.inputs",))
def in_place(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """The gate is a slice of the same projection."""
    return wrapped(descriptor, InPlace)


class Dense(Wrapped):
    """Takes rows of inputs for adjacent."""

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """Stride = width."""
        dense = {name: one.as_strided(one.shape, (one.shape[1], 1)) for name, one in inputs.items()}
        super().step(plan, layer, dense, out)


@mutant("dense", of="torch", sentence="takes tokens of inputs for adjacent", killed_by=("recurrent.memory.slices",))
def dense(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Right until the projection is fused."""
    return wrapped(descriptor, Dense)


class NoFeatures(Wrapped):
    """Does not look."""

    def see(self, plan: WrappedPlan, given: Fill) -> Fill:
        """None that it knows of."""
        batch, slots, snapshots, keep = given
        return replace(batch, features=frozenset()), slots, snapshots, keep


@mutant(
    "features_ignored",
    of="torch",
    sentence="ignores features of the batch that it does not know",
    killed_by=("recurrent.refusals.batch_features",),
)
def features_ignored(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """A tree becomes a chain."""
    return wrapped(descriptor, NoFeatures)


@mutant(
    "other_kind",
    of="torch",
    sentence="takes a kind that it does not know for the gated delta rule",
    killed_by=("recurrent.refusals.kinds",),
)
def other_kind(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """An `else` where an error belongs."""

    def build(build: RecurrentBuild) -> RecurrentBackend:
        known = build.spec.kind in ("mamba2", "gated_delta")
        return descriptor.build(build if known else replace(build, spec=replace(build.spec, kind="gated_delta")))

    return replace(descriptor, build=build)


class Brief(Wrapped):
    """Loads inputs in 16 bits."""

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """Where they are wider than 32."""
        some = {name: one.bfloat16().double() if one.dtype == torch.float64 else one for name, one in inputs.items()}
        super().step(plan, layer, some, out)


@mutant(
    "other_dtype",
    of="torch",
    sentence="takes inputs in float64, which it does not declare, and rounds them",
    killed_by=("recurrent.refusals.dtypes",),
)
def other_dtype(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Not refused, and wrong."""

    def build(build: RecurrentBuild) -> RecurrentBackend:
        taken = build.spec.dtype != "float64"
        return descriptor.build(build if taken else replace(build, spec=replace(build.spec, dtype="float32")))

    return wrapped(replace(descriptor, build=build), Brief)


@mutant(
    "state_in_dtype",
    of="torch",
    sentence="stores states in the dtype of the inputs",
    killed_by=("recurrent.layout",),
)
def state_in_dtype(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Half the memory, and drift."""

    def layouts(spec: RecurrentSpec) -> Sequence[Plane]:
        return [replace(plane, dtype=spec.dtype) for plane in descriptor.state_layouts(spec)]

    return replace(descriptor, state_layouts=layouts)
