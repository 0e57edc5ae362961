"""Recurrent layers in plain torch: the descriptor. Imports no torch; `build` imports the backend.

It covers every feature and every optional call of the contract, so that other backends can be compared
with it, and it serves on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.capabilities import YES
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

FLOATS = frozenset({"float32", "bfloat16", "float16"})
"""Dtypes of inputs and of stored states; computed is in float32."""
KINDS = frozenset({"mamba2", "gated_delta"})


class Options(BaseModel):
    """`[recurrent.options]` of this plugin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    chunk: int = Field(64, ge=1, le=1024, description="tokens of a prompt that are computed at once")


def capabilities(facts: DeviceFacts) -> RecurrentCapabilities:
    """Both kinds, in the device's dtypes, with snapshots anywhere and kept states."""
    return RecurrentCapabilities(
        features=KINDS, dtypes=FLOATS & facts.dtypes, capture="never", inner_snapshots=YES, keep=YES
    )


def state_layouts(spec: RecurrentSpec) -> Sequence[Plane]:
    """conv [conv_width - 1, conv_channels], oldest first, and state [heads, head_dim, state_dim]."""
    return (
        Plane("conv", (spec.conv_width - 1, spec.conv_channels), spec.dtype),
        Plane("state", (spec.heads, spec.head_dim, spec.state_dim), spec.state_dtype),
    )


def build(build: RecurrentBuild) -> RecurrentBackend:
    """The backend of one layer group. Raises `Unsupported` for a spec it does not cover."""
    from srtkit_plugin_recurrent_torch.backend import TorchRecurrent

    return TorchRecurrent(build)


@hookimpl
def srtkit_recurrent() -> RecurrentDescriptor:
    """Offers `recurrent:torch`."""
    return RecurrentDescriptor(
        contract="1.0", options=Options, capabilities=capabilities, state_layouts=state_layouts, build=build
    )
