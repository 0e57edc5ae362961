"""A backend that goes through each row a token at a time, over planes that lie otherwise than the reference's.

Correct by itself: a legal variant. Faults of arithmetic override one of its methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.attention import Batch
from srtkit.spec.capabilities import No
from srtkit.spec.errors import Unsupported
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
from srtkit_conformance.mutants.recurrent.wrap import Fill, claiming

PART = "recurrent:variant"


class Noted(RecurrentPlan):
    """The step as it was given."""

    given: Fill

    def close(self) -> None:
        """Nothing is held."""


class TokenByToken(RecurrentBackend):
    """float32, a token at a time. Padding is a row like others: it steps slot 0, which stays finite.

    States are in float32 only; snapshots at the ends of rows only; nothing is kept.
    """

    def __init__(self, build: RecurrentBuild) -> None:
        self.spec = build.spec
        for wrong, cause in (
            (not build.spec.features <= {"mamba2", "gated_delta"}, f"does not know {build.spec.kind}"),
            (build.spec.state_dtype != "float32", "keeps states in float32"),
            (build.spec.dtype == "float64", "computes in float32"),
        ):
            if wrong:
                raise Unsupported(PART, cause)

    def new_plan(self, limits: Limits) -> RecurrentPlan:
        """Holds a step."""
        return Noted()

    def fill(
        self, plan: RecurrentPlan, batch: Batch, state_slots: Tensor, snapshots: Snapshots | None, keep: int
    ) -> None:
        """Note the step."""
        assert isinstance(plan, Noted)
        inner = snapshots is not None and any(
            int(offset) < batch.host_q[row] for row, offset in zip(snapshots.row, snapshots.offset, strict=True)
        )
        if batch.features or keep or inner:
            raise Unsupported(PART, "cannot do this step: features, kept states or inner snapshots")
        plan.given = batch, state_slots, snapshots, keep

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """Row by row."""
        assert isinstance(plan, Noted)
        batch, slots, snapshots, _ = plan.given
        ends = batch.host_q.cumsum().tolist()
        for row, (slot, end, n) in enumerate(zip(slots.tolist(), ends, batch.host_q.tolist(), strict=True)):
            if n == 0:
                continue
            tokens = {name: values[end - n : end] for name, values in inputs.items()}
            out[end - n : end] = self.row(layer, slot, tokens, row < batch.leading).to(out.dtype)
        if snapshots is not None:
            self.fork(layer, slots[snapshots.row.long()], snapshots.target)

    def row(self, layer: RecurrentLayer, slot: int, tokens: Mapping[str, Tensor], leads: bool) -> Tensor:
        """Step one row: → float32 [n, heads, head_dim]."""
        conv, state = layer.planes["conv"], layer.planes["state"][slot].mT.clone()
        name = "xbc" if self.spec.kind == "mamba2" else "qkv"
        past = torch.cat((conv[slot].T, tokens[name]))
        channels = self.convolved(past, layer.weights)
        out = channels.new_empty(len(channels), self.spec.heads, self.spec.head_dim)
        for token, channel in enumerate(channels):
            scalars = {name: values[token] for name, values in tokens.items()}
            out[token], state = self.token(channel, scalars, layer.weights, state)
        conv[slot] = past[len(channels) :].T
        layer.planes["state"][slot] = self.stored(state).mT
        return out

    def convolved(self, past: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """[width - 1 + n, channels] → float32 [n, channels]."""
        bias = weights["conv_bias"].float() if "conv_bias" in weights else None
        kernel = weights["conv_weight"].float().unsqueeze(1)
        return F.silu(F.conv1d(past.float().T[None], kernel, bias, groups=len(kernel)))[0].T

    def token(
        self, channel: Tensor, scalars: Mapping[str, Tensor], weights: Mapping[str, Tensor], state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One token: → out [heads, head_dim] and the state [heads, head_dim, state_dim] after it."""
        spec = self.spec
        shared = spec.groups * spec.state_dim
        if spec.kind == "mamba2":
            x = channel[: -2 * shared].view(spec.heads, spec.head_dim)
            b, c = self.of_heads(channel[-2 * shared : -shared]), self.of_heads(channel[-shared:])
            return self.mamba2(x, b, c, scalars["dt"], weights, state)
        q, k = self.of_heads(channel[:shared]), self.of_heads(channel[shared : 2 * shared])
        v = channel[2 * shared :].view(spec.heads, spec.head_dim)
        return self.gated_delta(q, k, v, scalars, state)

    def of_heads(self, shared: Tensor) -> Tensor:
        """What a group shares, for each of its heads: [heads, state_dim]."""
        spec = self.spec
        return shared.view(spec.groups, spec.state_dim).repeat_interleave(spec.heads // spec.groups, 0)

    def mamba2(
        self, x: Tensor, b: Tensor, c: Tensor, dt: Tensor, weights: Mapping[str, Tensor], state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One token."""
        added = (dt[:, None] * x)[:, :, None] * b[:, None, :]
        state = torch.exp(dt * weights["a"])[:, None, None] * state + added
        out = (state @ c[:, :, None])[:, :, 0]
        return (out + weights["d"][:, None] * x if "d" in weights else out), state

    def gated_delta(
        self, q: Tensor, k: Tensor, v: Tensor, scalars: Mapping[str, Tensor], state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One token."""
        q, k = self.normalised(q, k)
        state = torch.exp(scalars["decay"])[:, None, None] * state
        error = scalars["beta"][:, None] * (v - (state @ k[:, :, None])[:, :, 0])
        state = state + error[:, :, None] * k[:, None, :]
        return (state @ q[:, :, None])[:, :, 0] / self.spec.state_dim**0.5, state

    def normalised(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Divided by their lengths."""
        q, k = (one * torch.rsqrt((one * one).sum(-1, keepdim=True) + 1e-6) for one in (q, k))
        return q, k

    def stored(self, state: Tensor) -> Tensor:
        """A state as it is stored."""
        return state

    def fork(self, layer: RecurrentLayer, source: Tensor, target: Tensor) -> None:
        """Copy both planes."""
        for plane in layer.planes.values():
            plane.index_copy_(0, target.long(), plane.index_select(0, source.long()))

    def zero(self, layer: RecurrentLayer, slots: Tensor) -> None:
        """Zero both planes."""
        for plane in layer.planes.values():
            plane.index_fill_(0, slots.long(), 0)

    def accept(self, plan: RecurrentPlan, layer: RecurrentLayer, n_accepted: Tensor) -> None:
        """Nothing is kept."""
        raise Unsupported(PART, "keeps no states")

    def close(self) -> None:
        """Nothing is held."""


def layouts(spec: RecurrentSpec) -> Sequence[Plane]:
    """conv [channels, width - 1] and state [heads, state_dim, head_dim]."""
    return (
        Plane("state", (spec.heads, spec.state_dim, spec.head_dim), spec.state_dtype),
        Plane("conv", (spec.conv_channels, spec.conv_width - 1), spec.dtype),
    )


def made_of(descriptor: RecurrentDescriptor, backend: type[TokenByToken]) -> RecurrentDescriptor:
    """The descriptor with this backend and what it declares in place of its own."""
    no = No("goes through rows token by token and keeps the last state")
    return replace(claiming(descriptor, inner_snapshots=no, keep=no), state_layouts=layouts, build=backend)
