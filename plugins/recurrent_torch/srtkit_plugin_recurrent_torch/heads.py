"""How channels and scalars of a layer belong to groups and heads. Shapes only, no arithmetic.

Axes, here and in both recurrences: b rows, g groups, r heads of a group, t tokens, p of x or v, n of the state.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from srtkit.spec.recurrent import RecurrentSpec


@dataclass(frozen=True)
class Heads:
    """Sizes of a layer: `ratio` heads a group. All views, no copies."""

    groups: int
    ratio: int
    head_dim: int
    state_dim: int

    @staticmethod
    def of(spec: RecurrentSpec) -> Heads:
        """The sizes of a spec."""
        return Heads(spec.groups, spec.heads // spec.groups, spec.head_dim, spec.state_dim)

    @property
    def own(self) -> int:
        """Channels of x or v."""
        return self.groups * self.ratio * self.head_dim

    @property
    def shared(self) -> int:
        """Channels of B, C, k or q."""
        return self.groups * self.state_dim

    def by_head(self, channels: Tensor) -> Tensor:
        """x or v: [b, t, own] → [b, g, r, t, p]."""
        shape = (*channels.shape[:2], self.groups, self.ratio, self.head_dim)
        return channels.view(shape).permute(0, 2, 3, 1, 4)

    def by_group(self, channels: Tensor) -> Tensor:
        """B, C, k or q: [b, t, shared] → [b, g, 1, t, n]."""
        return channels.view(*channels.shape[:2], self.groups, 1, self.state_dim).permute(0, 2, 3, 1, 4)

    def scalars(self, values: Tensor) -> Tensor:
        """dt, beta or decay: [b, t, heads] → [b, g, r, t]."""
        return values.mT.view(len(values), self.groups, self.ratio, -1)

    def state(self, state: Tensor) -> Tensor:
        """[b, heads, p, n] → [b, g, r, p, n]."""
        return state.view(len(state), self.groups, self.ratio, self.head_dim, self.state_dim)
