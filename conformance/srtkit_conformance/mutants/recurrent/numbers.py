"""Backends that compute something else. One fault each, in the backend that goes token by token."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.recurrent import RecurrentDescriptor, RecurrentLayer
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.recurrent.token_by_token import TokenByToken, made_of


class SoftplusAgain(TokenByToken):
    """As kernels do that are told to."""

    def mamba2(
        self, x: Tensor, b: Tensor, c: Tensor, dt: Tensor, weights: Mapping[str, Tensor], state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of what is softplus already."""
        return super().mamba2(x, b, c, F.softplus(dt), weights, state)


@mutant("softplus_again", of="torch", sentence="applies softplus to dt", killed_by=("recurrent.numerics.mamba2",))
def softplus_again(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """dt comes ready."""
    return made_of(descriptor, SoftplusAgain)


class LateDecay(TokenByToken):
    """S k is taken of the state as the last token left it."""

    def gated_delta(
        self, q: Tensor, k: Tensor, v: Tensor, scalars: Mapping[str, Tensor], state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Two lines in the wrong order: S (k / factor) on the decayed state is S k on the one before."""
        _, key = self.normalised(q, k)
        read = (state @ key[:, :, None])[:, :, 0]
        faded = torch.exp(scalars["decay"])[:, None] * read
        return super().gated_delta(q, k, v - read + faded, scalars, state)


@mutant(
    "decay_after_error",
    of="torch",
    sentence="takes the error of the delta rule before the state is decayed",
    killed_by=("recurrent.numerics.gated_delta",),
)
def decay_after_error(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Nearly right where states fade slowly."""
    return made_of(descriptor, LateDecay)


class WidthFour(TokenByToken):
    """Columns of a kernel that is shorter than 4 are taken from the wrong end."""

    def convolved(self, past: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Reversed unless 4 wide."""
        kernel = weights["conv_weight"]
        return super().convolved(past, {**weights, "conv_weight": kernel if kernel.shape[1] == 4 else kernel.flip(1)})


@mutant(
    "width_four",
    of="torch",
    sentence="reverses the columns of convolutions that are not 4 wide",
    killed_by=("recurrent.numerics.convolution",),
)
def width_four(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """The width that every published model has."""
    return made_of(descriptor, WidthFour)


class SkipOfOnes(TokenByToken):
    """A missing weight is made up."""

    def mamba2(
        self, x: Tensor, b: Tensor, c: Tensor, dt: Tensor, weights: Mapping[str, Tensor], state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """d is 1 where there is none."""
        return super().mamba2(x, b, c, dt, {"d": torch.ones_like(dt), **weights}, state)


@mutant("skip_of_ones", of="torch", sentence="takes d for 1 where it is absent", killed_by=("recurrent.numerics.skip",))
def skip_of_ones(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """As it is initialised in training."""
    return made_of(descriptor, SkipOfOnes)


class GroupsInTurn(TokenByToken):
    """h % groups."""

    def of_heads(self, shared: Tensor) -> Tensor:
        """Dealt out in turn."""
        spec = self.spec
        return shared.view(spec.groups, spec.state_dim).repeat(spec.heads // spec.groups, 1)


@mutant("groups_in_turn", of="torch", sentence="head h uses group h % groups", killed_by=("recurrent.numerics.groups",))
def groups_in_turn(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Right for one group, and for as many as heads."""
    return made_of(descriptor, GroupsInTurn)


class Quotients(TokenByToken):
    """Factors over several tokens are quotients of products since the row's start."""

    def row(self, layer: RecurrentLayer, slot: int, tokens: Mapping[str, Tensor], leads: bool) -> Tensor:
        """Start a product."""
        self.product = torch.ones(self.spec.heads, 1, 1)
        return super().row(layer, slot, tokens, leads)

    def mamba2(
        self, x: Tensor, b: Tensor, c: Tensor, dt: Tensor, weights: Mapping[str, Tensor], state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """0 / 0 once the product has underflown."""
        before = self.product
        self.product = before * torch.exp(dt * weights["a"])[:, None, None]
        added = (dt[:, None] * x)[:, :, None] * b[:, None, :]
        state = self.product / before * state + added
        out = (state @ c[:, :, None])[:, :, 0]
        return (out + weights["d"][:, None] * x if "d" in weights else out), state


@mutant(
    "quotients",
    of="torch",
    sentence="divides products of decays by one another",
    killed_by=("recurrent.numerics.fast_decay",),
)
def quotients(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Right until a state has faded below the least float."""
    return made_of(descriptor, Quotients)


class BriefState(TokenByToken):
    """16 bits between steps."""

    def stored(self, state: Tensor) -> Tensor:
        """Rounded."""
        return state.bfloat16().float()


@mutant(
    "brief_state",
    of="torch",
    sentence="rounds states to bfloat16 between steps",
    killed_by=("recurrent.numerics.slow_decay",),
)
def brief_state(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """A prompt in one step is right."""
    return made_of(descriptor, BriefState)


class OneTile(TokenByToken):
    """A tile of 64 state elements, and no loop over tiles."""

    def of_heads(self, shared: Tensor) -> Tensor:
        """What is beyond the first tile does not count."""
        return super().of_heads(shared) * (torch.arange(self.spec.state_dim) < 64)


@mutant(
    "one_tile",
    of="torch",
    sentence="takes the first 64 elements of a state for all",
    killed_by=("recurrent.numerics.shapes",),
)
def one_tile(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Right up to that size."""
    return made_of(descriptor, OneTile)


class ShortRest(TokenByToken):
    """Chunks of 64; a rest that is shorter than the convolution finds no tokens before it."""

    def convolved(self, past: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """The rest for itself, after zeros."""
        found = super().convolved(past, weights)
        history = self.spec.conv_width - 1
        rest = len(found) % 64
        if len(found) > 64 and 0 < rest < history:
            alone = torch.cat((torch.zeros_like(past[:history]), past[-rest:]))
            found[-rest:] = super().convolved(alone, weights)
        return found


@mutant(
    "short_rest",
    of="torch",
    sentence="one or two tokens after full chunks of 64 are convolved without those before them",
    killed_by=("recurrent.steps.any",),
)
def short_rest(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Lengths that no directed check has."""
    return made_of(descriptor, ShortRest)


class BriefDecode(TokenByToken):
    """The decode kernel and the prefill kernel differ."""

    def row(self, layer: RecurrentLayer, slot: int, tokens: Mapping[str, Tensor], leads: bool) -> Tensor:
        """The decode kernel's sums have 16 bits."""
        out = super().row(layer, slot, tokens, leads)
        return out.bfloat16().float() if leads else out


@mutant(
    "brief_decode",
    of="torch",
    sentence="leading rows are computed to bfloat16 only",
    killed_by=("recurrent.steps.one_token",),
)
def brief_decode(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """The same row gives something else when it does not lead."""
    return made_of(descriptor, BriefDecode)
