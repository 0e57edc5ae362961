"""The backend of one layer group: refuses what it does not cover, moves states in and out of slots.

Knows the contract and slots; the arithmetic is in conv, mamba2 and gated_delta, the cutting of a step in plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from srtkit.spec.attention import Batch
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import Limits
from srtkit.spec.recurrent import (
    RecurrentBackend,
    RecurrentBuild,
    RecurrentLayer,
    RecurrentPlan,
    RecurrentSpec,
    Snapshots,
)
from srtkit_plugin_recurrent_torch import FLOATS, KINDS, Options, gated_delta, mamba2
from srtkit_plugin_recurrent_torch.conv import causal_conv
from srtkit_plugin_recurrent_torch.heads import Heads
from srtkit_plugin_recurrent_torch.plan import Group, Kept, TorchPlan, cut_step

PART = "recurrent:torch"

Scalars = Mapping[str, Tensor]
Advance = Callable[[Heads, Mapping[str, Tensor], Tensor, Scalars, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Kind:
    """A recurrence: names of its inputs, the convolved one apart, and what computes a chunk of it."""

    channels: str
    scalars: tuple[str, ...]
    advance: Advance


MADE_OF = {
    "mamba2": Kind("xbc", ("dt",), mamba2.advance),
    "gated_delta": Kind("qkv", ("beta", "decay"), gated_delta.advance),
}


class TorchRecurrent(RecurrentBackend):
    """Recurrent layers of one spec in torch. Rows that are alike in a step are computed together."""

    def __init__(self, build: RecurrentBuild) -> None:
        assert isinstance(build.options, Options)
        _refuse(build.spec)
        self._kind = MADE_OF[build.spec.kind]
        self._heads = Heads.of(build.spec)
        self._chunk = build.options.chunk

    def new_plan(self, limits: Limits) -> TorchPlan:
        """An empty plan: its tensors are made by `fill`."""
        return TorchPlan()

    def fill(
        self, plan: RecurrentPlan, batch: Batch, state_slots: Tensor, snapshots: Snapshots | None, keep: int
    ) -> None:
        """Cut the step into groups of rows. Raises `Unsupported` for any batch feature."""
        assert isinstance(plan, TorchPlan)
        if batch.features:
            raise Unsupported(PART, f"does not understand the feature {', '.join(sorted(batch.features))}")
        cut_step(plan, batch, state_slots, snapshots, keep)

    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """As the contract says. `out` of padding tokens is 0."""
        assert isinstance(plan, TorchPlan)
        out[plan.padding] = 0
        kept = [self._step_group(group, layer, inputs, out) for group in plan.groups]
        if plan.kept is not None:
            plan.kept[layer.index] = [one for one in kept if one is not None]

    def fork(self, layer: RecurrentLayer, source: Tensor, target: Tensor) -> None:
        """Copy both planes."""
        for plane in layer.planes.values():
            plane[target.long()] = plane[source.long()]

    def zero(self, layer: RecurrentLayer, slots: Tensor) -> None:
        """Zero both planes."""
        for plane in layer.planes.values():
            plane[slots.long()] = 0

    def accept(self, plan: RecurrentPlan, layer: RecurrentLayer, n_accepted: Tensor) -> None:
        """Write the kept states back."""
        assert isinstance(plan, TorchPlan)
        if plan.kept is None:
            raise Unsupported(PART, "cannot go back to a state of a step that kept none", "fill with keep > 0")
        for kept in plan.kept[layer.index]:
            n = n_accepted[kept.group.rows].long()
            members = n.nonzero().squeeze(1)
            slots, last = kept.group.slots[members], n[members] - 1
            layer.planes["conv"][slots] = kept.conv[last, members]
            layer.planes["state"][slots] = kept.state[last, members]

    def close(self) -> None:
        """Nothing is held between steps."""

    def _step_group(
        self, group: Group, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor
    ) -> Kept | None:
        """Advance a group's rows from cut to cut; write their states, and copies of them where they are wanted."""
        conv, plane = layer.planes["conv"], layer.planes["state"]
        history = conv.shape[1]
        tokens = torch.cat((conv[group.slots], inputs[self._kind.channels][group.tokens]), 1)
        channels = causal_conv(tokens, layer.weights["conv_weight"], layer.weights.get("conv_bias"))
        scalars = {name: inputs[name][group.tokens] for name in self._kind.scalars}
        state = plane[group.slots].float()
        kept_conv, kept_state = [], []
        begin = 0
        for cut in group.cuts:
            end = cut.offset
            some = {name: values[:, begin:end] for name, values in scalars.items()}
            part, state = self._advance(layer, channels[:, begin:end], some, state)
            out[group.tokens[:, begin:end]] = part.to(out.dtype)
            stored, last = state.to(plane.dtype), tokens[:, end : end + history]
            if len(cut.targets):
                conv[cut.targets], plane[cut.targets] = last[cut.members], stored[cut.members]
            if cut.kept:
                kept_conv.append(last)
                kept_state.append(stored)
            begin = end
        conv[group.slots], plane[group.slots] = tokens[:, begin : begin + history], state.to(plane.dtype)
        return Kept(group, torch.stack(kept_conv), torch.stack(kept_state)) if kept_conv else None

    def _advance(
        self, layer: RecurrentLayer, channels: Tensor, scalars: Scalars, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Chunk by chunk: channels [b, n, conv_channels], scalars [b, n, heads], state [b, heads, p, n].

        → out [b, n, heads, p] and the state after it.
        """
        heads, carried = self._heads, self._heads.state(state)
        outs = []
        for start in range(0, channels.shape[1], self._chunk):
            part = slice(start, start + self._chunk)
            some = {name: heads.scalars(values[:, part]) for name, values in scalars.items()}
            out, carried = self._kind.advance(heads, layer.weights, channels[:, part], some, carried)
            outs.append(out.permute(0, 3, 1, 2, 4).flatten(2, 3))
        return torch.cat(outs, 1), carried.flatten(1, 2)


def _refuse(spec: RecurrentSpec) -> None:
    """Raise `Unsupported` for a spec that is not declared, or does not agree with itself."""
    if missing := spec.features - KINDS:
        raise Unsupported(PART, f"does not understand the feature {', '.join(sorted(missing))}")
    for what, dtype in (("compute in", spec.dtype), ("keep states in", spec.state_dtype)):
        if dtype not in FLOATS:
            raise Unsupported(PART, f"does not {what} {dtype} (it does: {', '.join(sorted(FLOATS))})")
    if spec.heads % spec.groups:
        raise Unsupported(PART, f"{spec.heads} heads do not share {spec.groups} groups evenly")
    channels = spec.heads * spec.head_dim + 2 * spec.groups * spec.state_dim
    if spec.conv_channels != channels:
        raise Unsupported(PART, f"{spec.conv_channels} convolved channels do not make these heads: {channels} do")
