"""Backends that lose, mix up or overwrite states. One fault each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from srtkit.spec.recurrent import RecurrentDescriptor, RecurrentLayer, RecurrentPlan, Snapshots
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.recurrent.token_by_token import TokenByToken, made_of
from srtkit_conformance.mutants.recurrent.wrap import Fill, Wrapped, WrappedPlan, wrapped


class NoHistory(TokenByToken):
    """A chunk's convolution begins as a prompt's does."""

    def row(self, layer: RecurrentLayer, slot: int, tokens: Mapping[str, Tensor], leads: bool) -> Tensor:
        """Forget the history of rows with several tokens."""
        if len(next(iter(tokens.values()))) > 1:
            layer.planes["conv"][slot] = 0
        return super().row(layer, slot, tokens, leads)


@mutant(
    "chunk_without_history",
    of="torch",
    sentence="the convolution of a later chunk begins with zeros",
    killed_by=("recurrent.steps.chunks",),
)
def chunk_without_history(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Three tokens a chunk are wrong."""
    return made_of(descriptor, NoHistory)


class RowSlots(Wrapped):
    """Takes the batch's slots."""

    def see(self, plan: WrappedPlan, given: Fill) -> Fill:
        """Row slots for state slots."""
        batch, _, snapshots, keep = given
        return batch, batch.slots, snapshots, keep


@mutant("row_slots", of="torch", sentence="takes row slots for state slots", killed_by=("recurrent.steps.slots",))
def row_slots(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """They are the same as long as nothing is forked."""
    return wrapped(descriptor, RowSlots)


class EmptyRows(Wrapped):
    """A row without tokens is taken for a new one."""

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """Its state is zeroed."""
        assert isinstance(plan, WrappedPlan)
        batch, slots, _, _ = plan.filled
        self.inner.zero(layer, slots[torch.from_numpy(batch.host_q) == 0])
        super().step(plan, layer, inputs, out)


@mutant(
    "empty_rows",
    of="torch",
    sentence="zeroes the state of a row that has no tokens in the step",
    killed_by=("recurrent.steps.mixed",),
)
def empty_rows(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Rare: a row that waits."""
    return wrapped(descriptor, EmptyRows)


class PaddingUnwritten(Wrapped):
    """Leaves what memory held."""

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """Put it back."""
        assert isinstance(plan, WrappedPlan)
        batch, slots, _, _ = plan.filled
        is_padding = (slots == 0).repeat_interleave(torch.from_numpy(batch.host_q))
        before = out[is_padding]
        super().step(plan, layer, inputs, out)
        out[is_padding] = before


@mutant(
    "padding_unwritten",
    of="torch",
    sentence="does not write the results of padding tokens",
    killed_by=("recurrent.steps.padding",),
)
def padding_unwritten(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """The next layer reads them."""
    return wrapped(descriptor, PaddingUnwritten)


class ZeroTimes(Wrapped):
    """0 * NaN is NaN."""

    def zero(self, layer: RecurrentLayer, slots: Tensor) -> None:
        """Multiply."""
        for plane in layer.planes.values():
            plane[slots.long()] *= 0


@mutant("zero_times", of="torch", sentence="zeroes by multiplication", killed_by=("recurrent.states.zero",))
def zero_times(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """A sequence whose step failed leaves NaN."""
    return wrapped(descriptor, ZeroTimes)


class ForkState(Wrapped):
    """Forgets the small plane."""

    def fork(self, layer: RecurrentLayer, source: Tensor, target: Tensor) -> None:
        """Copy the state, zero the convolution's."""
        self.inner.fork(layer, source, target)
        layer.planes["conv"][target.long()] = 0


@mutant(
    "fork_without_conv",
    of="torch",
    sentence="fork leaves out the convolution's state",
    killed_by=("recurrent.states.fork",),
)
def fork_without_conv(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Three tokens after a fork are wrong."""
    return wrapped(descriptor, ForkState)


class NoSnapshots(Wrapped):
    """Drops them."""

    def see(self, plan: WrappedPlan, given: Fill) -> Fill:
        """None."""
        batch, slots, _, keep = given
        return batch, slots, None, keep


@mutant("no_snapshots", of="torch", sentence="takes no snapshots", killed_by=("recurrent.states.snapshots",))
def no_snapshots(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """The target holds what it held."""
    return wrapped(descriptor, NoSnapshots)


class LateSnapshots(Wrapped):
    """At the end of the row."""

    def see(self, plan: WrappedPlan, given: Fill) -> Fill:
        """Every offset is the row's length."""
        batch, slots, snapshots, keep = given
        if snapshots is not None:
            lengths = torch.from_numpy(batch.host_q)[snapshots.row.long()]
            snapshots = self.last_ones(replace(snapshots, offset=lengths))
        return batch, slots, snapshots, keep

    def last_ones(self, snapshots: Snapshots) -> Snapshots:
        """One a row, since all would be the same."""
        rows = snapshots.row.tolist()
        last = torch.tensor([max(i for i, other in enumerate(rows) if other == row) for row in sorted(set(rows))])
        return Snapshots(*(one[last] for one in vars(snapshots).values()))


@mutant(
    "late_snapshots",
    of="torch",
    sentence="takes snapshots of a row's end whatever their offset",
    killed_by=("recurrent.states.inner_snapshots",),
)
def late_snapshots(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Declares inner ones and has none."""
    return wrapped(descriptor, LateSnapshots)


class AcceptState(Wrapped):
    """Sets back the state alone."""

    def accept(self, plan: RecurrentPlan, layer: RecurrentLayer, n_accepted: Tensor) -> None:
        """The convolution keeps the rejected tokens."""
        before = layer.planes["conv"].clone()
        super().accept(plan, layer, n_accepted)
        layer.planes["conv"].copy_(before)


@mutant(
    "accept_without_conv",
    of="torch",
    sentence="accept leaves the convolution's state where the step left it",
    killed_by=("recurrent.states.accept",),
)
def accept_without_conv(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Right when everything is accepted."""
    return wrapped(descriptor, AcceptState)


class Neighbours(Wrapped):
    """Writes a range of slots back."""

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """The slot after a row's gets its convolution's state, too, unless another row has it."""
        super().step(plan, layer, inputs, out)
        assert isinstance(plan, WrappedPlan)
        plane, slots = layer.planes["conv"], plan.filled[1].tolist()
        for slot in slots:
            after = slot + 1
            if slot and after < len(plane) and after not in slots:
                plane[after] = plane[slot]


@mutant(
    "neighbours",
    of="torch",
    sentence="writes the slot after a row's, too",
    killed_by=("recurrent.states.apart",),
)
def neighbours(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Harmless while nobody has it."""
    return wrapped(descriptor, Neighbours)


class WrongHalf(Wrapped):
    """One conversion for both 16-bit dtypes."""

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """States in float16 go through bfloat16."""
        super().step(plan, layer, inputs, out)
        if self.spec.state_dtype == "float16":
            state = layer.planes["state"]
            state.copy_(state.bfloat16())


@mutant(
    "wrong_half",
    of="torch",
    sentence="rounds states in float16 to bfloat16 first",
    killed_by=("recurrent.numerics.state_dtypes",),
)
def wrong_half(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Right for the dtypes that models use."""
    return wrapped(descriptor, WrongHalf)
