"""One layer's shapes and how its inputs are drawn, as data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, cast

from srtkit.spec.recurrent import RecurrentSpec
from srtkit_conformance.kits.numeric.gates import CEILING, CEILINGS

CHANNELS = {"mamba2": "xbc", "gated_delta": "qkv"}
"""The name of a kind's convolved input."""
SCALARS = {"mamba2": ("dt",), "gated_delta": ("beta", "decay")}
"""The names of its other inputs, float32 [T, heads]."""


@dataclass(frozen=True)
class Case:
    """`bias`: the convolution has one; `skip`: mamba2 has "d".

    `forgets` is how fast states fade: the mean of -log of a token's factor, about. At 0.05 a state reaches
    back 20 tokens, at 20 hardly one.
    """

    kind: str
    dtype: str
    heads: int = 2
    groups: int = 1
    head_dim: int = 64
    state_dim: int = 64
    conv_width: int = 4
    bias: bool = True
    skip: bool = True
    state_dtype: str = "float32"
    forgets: float = 0.05

    @property
    def spec(self) -> RecurrentSpec:
        """The layers' spec."""
        return RecurrentSpec(
            kind=cast("Literal['mamba2', 'gated_delta']", self.kind),  # checks ask for kinds that do not exist, too
            heads=self.heads,
            head_dim=self.head_dim,
            state_dim=self.state_dim,
            groups=self.groups,
            conv_width=self.conv_width,
            conv_channels=self.heads * self.head_dim + 2 * self.groups * self.state_dim,
            dtype=self.dtype,
            state_dtype=self.state_dtype,
        )

    @property
    def coarsest(self) -> str:
        """The dtype that bounds what the layer can give: that of the inputs or that of the state."""
        return max((self.dtype, self.state_dtype), key=lambda name: CEILINGS.get(name, CEILING))

    def __str__(self) -> str:
        """What it is, and what differs from the usual, for messages."""
        shape = f"{self.kind} in {self.dtype}, {self.heads} heads of {self.head_dim}x{self.state_dim}"
        told = {"kind", "dtype", "heads", "head_dim", "state_dim"}
        extra = [
            f"{one.name}={vars(self)[one.name]}"
            for one in fields(self)
            if one.name not in told and vars(self)[one.name] != one.default
        ]
        return ", ".join([shape, *extra])
