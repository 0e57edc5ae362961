"""A backend around another that passes every call on, and ways to put it into a descriptor. Holds no fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from srtkit.spec.attention import Batch
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.recurrent import (
    RecurrentBackend,
    RecurrentBuild,
    RecurrentDescriptor,
    RecurrentLayer,
    RecurrentPlan,
    Snapshots,
)

Fill = tuple[Batch, Tensor, Snapshots | None, int]
"""The arguments of `fill` beside the plan."""


class WrappedPlan(RecurrentPlan):
    """The inner plan, and the step that was given last."""

    def __init__(self, inner: RecurrentPlan) -> None:
        self.inner = inner
        self.given: Fill | None = None

    @property
    def filled(self) -> Fill:
        """The step filled in last."""
        assert self.given is not None, "step before fill"
        return self.given

    def close(self) -> None:
        """Close the inner plan."""
        self.inner.close()


class Wrapped(RecurrentBackend):
    """Passes on. Faults override `see` (what fill is told), or a call."""

    def __init__(self, inner: RecurrentBackend, build: RecurrentBuild) -> None:
        self.inner = inner
        self.spec = build.spec

    def see(self, plan: WrappedPlan, given: Fill) -> Fill:
        """What the inner backend is told of a step."""
        return given

    def new_plan(self, limits: Limits) -> RecurrentPlan:
        """Around an inner plan."""
        return WrappedPlan(self.inner.new_plan(limits))

    def fill(
        self, plan: RecurrentPlan, batch: Batch, state_slots: Tensor, snapshots: Snapshots | None, keep: int
    ) -> None:
        """Remember the step and pass it on."""
        assert isinstance(plan, WrappedPlan)
        told = self.see(plan, (batch, state_slots, snapshots, keep))
        plan.given = (batch, state_slots, snapshots, keep)
        self.inner.fill(plan.inner, *told)

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """Pass on."""
        assert isinstance(plan, WrappedPlan)
        self.inner.step(plan.inner, layer, inputs, out)

    def fork(self, layer: RecurrentLayer, source: Tensor, target: Tensor) -> None:
        """Pass on."""
        self.inner.fork(layer, source, target)

    def zero(self, layer: RecurrentLayer, slots: Tensor) -> None:
        """Pass on."""
        self.inner.zero(layer, slots)

    def accept(self, plan: RecurrentPlan, layer: RecurrentLayer, n_accepted: Tensor) -> None:
        """Pass on."""
        assert isinstance(plan, WrappedPlan)
        self.inner.accept(plan.inner, layer, n_accepted)

    def close(self) -> None:
        """Pass on."""
        self.inner.close()


def wrapped(
    descriptor: RecurrentDescriptor, backend: Callable[[RecurrentBackend, RecurrentBuild], RecurrentBackend]
) -> RecurrentDescriptor:
    """The descriptor, its backends being put into `backend`."""
    return replace(descriptor, build=lambda build: backend(descriptor.build(build), build))


def claiming(descriptor: RecurrentDescriptor, **claims: Any) -> RecurrentDescriptor:
    """The descriptor, declaring something else."""

    def capabilities(facts: DeviceFacts) -> Any:
        return replace(descriptor.capabilities(facts), **claims)

    return replace(descriptor, capabilities=capabilities)
