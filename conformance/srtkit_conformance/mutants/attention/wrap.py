"""A backend around another that passes every call on, and ways to put it into a descriptor. Holds no fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionDescriptor,
    AttentionParts,
    AttentionPlan,
    AttentionSpec,
    Batch,
    DenseAttention,
    GroupView,
    LayerHandle,
    PlanAdvance,
    Rows,
    SlotMover,
)
from srtkit.spec.facts import DeviceFacts, Limits


class WrappedPlan(AttentionPlan):
    """The inner plan; the step that was given last, and as the inner backend was told of it (`filled`)."""

    def __init__(self, inner: AttentionPlan) -> None:
        self.inner = inner
        self.given: tuple[Batch, GroupView] | None = None
        self.batch: Batch | None = None
        self.view: GroupView | None = None

    @property
    def filled(self) -> tuple[Batch, GroupView]:
        """The step filled in last."""
        assert self.batch is not None and self.view is not None, "attend before fill"
        return self.batch, self.view

    def close(self) -> None:
        """Close the inner plan."""
        self.inner.close()


@dataclass(frozen=True)
class Call:
    """The arguments of one `attend`."""

    q: Tensor
    out: Tensor
    rows: Rows
    fresh: tuple[Tensor, Tensor] | None
    lse: Tensor | None


class Wrapped(AttentionBackend):
    """Passes on. Faults override `see` (what fill is told), `handle` (what a layer is), `call` (an attend), or more."""

    def __init__(self, inner: AttentionBackend, build: AttentionBuild) -> None:
        self.inner = inner
        self.spec = build.group.spec
        self.page = build.layout.page_tokens
        parts = inner.parts()
        dense, mover = parts.dense, parts.mover
        self._parts = replace(
            parts,
            dense=None if dense is None else self.wrap_dense(dense),
            advance=None if parts.advance is None else WrappedAdvance(self),
            mover=None if mover is None else WrappedMover(self, mover),
        )

    def wrap_dense(self, dense: DenseAttention) -> DenseAttention:
        """The dense part that it shows."""
        return WrappedDense(self, dense)

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """What the inner backend is told of a step."""
        return batch, view

    def handle(self, layer: LayerHandle) -> LayerHandle:
        """The layer as the inner backend sees it."""
        return layer

    def new_plan(self, limits: Limits) -> AttentionPlan:
        """Around an inner plan."""
        return WrappedPlan(self.inner.new_plan(limits))

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Remember the step and pass it on."""
        assert isinstance(plan, WrappedPlan)
        plan.given = batch, view
        plan.batch, plan.view = self.see(plan, batch, view)
        self.inner.fill(plan.inner, plan.batch, plan.view)

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Pass on."""
        self.inner.store(inner_plan(plan), self.handle(layer), k, v)

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
        """Pass on as a `call`."""
        assert isinstance(plan, WrappedPlan)
        self.call(plan, layer, Call(q, out, rows, fresh, lse))

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """An `attend`, its arguments in one."""
        self.inner.attend(plan.inner, self.handle(layer), how.q, how.out, rows=how.rows, fresh=how.fresh, lse=how.lse)

    def parts(self) -> AttentionParts:
        """Those of the inner backend, around its plans."""
        return self._parts

    def close(self) -> None:
        """Pass on."""
        self.inner.close()


class WrappedDense(DenseAttention):
    """Passes on."""

    def __init__(self, owner: Wrapped, inner: DenseAttention) -> None:
        self.owner = owner
        self.inner = inner

    def attend_dense(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu: tuple[Tensor, Tensor],
        out: Tensor,
        *,
        causal: bool = True,
        lse: Tensor | None = None,
    ) -> None:
        """Pass on."""
        self.inner.attend_dense(q, k, v, cu, out, causal=causal, lse=lse)

    def gather(
        self, plan: AttentionPlan, layer: LayerHandle, row: int, start: int, stop: int, out: tuple[Tensor, Tensor]
    ) -> None:
        """Pass on."""
        self.inner.gather(inner_plan(plan), self.owner.handle(layer), row, start, stop, out)

    def merge(self, out: Tensor, lse: Tensor, out2: Tensor, lse2: Tensor) -> None:
        """Pass on."""
        self.inner.merge(out, lse, out2, lse2)


class WrappedAdvance(PlanAdvance):
    """Fills again, with the lengths that the device has."""

    def __init__(self, owner: Wrapped) -> None:
        self.owner = owner

    def advance(self, plan: AttentionPlan) -> None:
        """From the tensors of the step that was given."""
        assert isinstance(plan, WrappedPlan) and plan.given is not None
        batch, view = plan.given
        self.owner.fill(plan, with_device_lengths(batch), view)


class WrappedMover(SlotMover):
    """Passes on."""

    def __init__(self, owner: Wrapped, inner: SlotMover) -> None:
        self.owner = owner
        self.inner = inner

    def move_slots(self, layer: LayerHandle, source: Tensor, target: Tensor) -> None:
        """Pass on."""
        self.inner.move_slots(self.owner.handle(layer), source, target)


def with_device_lengths(batch: Batch) -> Batch:
    """The batch, its lengths on the host read from the device."""
    return replace(batch, exact=True, host_context=batch.context.cpu().numpy().copy())


def inner_plan(plan: AttentionPlan) -> AttentionPlan:
    """What a wrapped plan holds."""
    assert isinstance(plan, WrappedPlan)
    return plan.inner


def wrapped(
    descriptor: AttentionDescriptor, backend: Callable[[AttentionBackend, AttentionBuild], AttentionBackend]
) -> AttentionDescriptor:
    """The descriptor, its backends being put into `backend`."""
    return replace(descriptor, build=lambda build: backend(descriptor.build(build), build))


def respecified(
    descriptor: AttentionDescriptor, change: Callable[[AttentionSpec], AttentionSpec]
) -> AttentionDescriptor:
    """The descriptor, its backends being built for another spec than they are asked for."""

    def build(build: AttentionBuild) -> AttentionBackend:
        return descriptor.build(replace(build, group=replace(build.group, spec=change(build.group.spec))))

    return replace(descriptor, build=build)


def claiming(descriptor: AttentionDescriptor, **claims: Any) -> AttentionDescriptor:
    """The descriptor, declaring something else."""

    def capabilities(facts: DeviceFacts) -> Any:
        return replace(descriptor.capabilities(facts), **claims)

    return replace(descriptor, capabilities=capabilities)
