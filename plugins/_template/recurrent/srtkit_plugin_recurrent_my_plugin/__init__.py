"""Recurrent backend `my-plugin`: the descriptor. Data and pure functions; `build` imports torch.

It says yes to Mamba2. What it does not name, core refuses before a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from srtkit.spec.capabilities import No
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.kv import Plane
from srtkit.spec.recurrent import (
    RecurrentBackend,
    RecurrentBuild,
    RecurrentCapabilities,
    RecurrentDescriptor,
    RecurrentSpec,
)

DTYPES = frozenset({"float32", "bfloat16", "float16"})


class Options(BaseModel):
    """The table `[recurrent.options.my-plugin]`; a key that is not here is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    compute_dtype: Literal["float32", "float64"] = "float32"
    """What the recurrence is computed in; states are stored in float32."""


def capabilities(facts: DeviceFacts) -> RecurrentCapabilities:
    """What the backend can do on this device. A field that is not set means no."""
    return RecurrentCapabilities(
        features=frozenset({"mamba2"}),
        dtypes=DTYPES & facts.dtypes,
        capture="never",
        inner_snapshots=No("only the state at a row's end is written"),
        keep=No("only the last state is written"),
    )


def state_layouts(spec: RecurrentSpec) -> Sequence[Plane]:
    """What stands in a slot: the last inputs of the convolution, oldest first, and the state."""
    return [
        Plane("conv", (spec.conv_width - 1, spec.conv_channels), spec.dtype),
        Plane("state", (spec.heads, spec.head_dim, spec.state_dim), spec.state_dtype),
    ]


def build(given: RecurrentBuild) -> RecurrentBackend:
    """The backend of one layer group. Raise `DeviceAbsent` here when the hardware is not there."""
    from srtkit_plugin_recurrent_my_plugin.backend import MyPluginBackend

    return MyPluginBackend(given)


@hookimpl
def srtkit_recurrent() -> RecurrentDescriptor:
    """Offers the backend `my-plugin`."""
    return RecurrentDescriptor(
        contract="1.1",
        options=Options,
        capabilities=capabilities,
        state_layouts=state_layouts,
        build=build,
    )
