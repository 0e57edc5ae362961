"""The recurrent contract, `recurrent/1.0`: Mamba2, gated delta rule and kin over state slots.

A sequence's state stands in one state slot per layer. Core plans where it is zeroed, forked and
snapshot; a backend computes and never decides. State slot 0 is padding: finite scratch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from srtkit.spec.attention import Batch
from srtkit.spec.capabilities import NOT_DECLARED, Answer, Descriptor
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.kv import Plane

if TYPE_CHECKING:
    from torch import Tensor

    from srtkit.spec.platform import Platform


@dataclass(frozen=True)
class RecurrentSpec:
    """What a layer computes: "mamba2" or "gated_delta". Sizes are per rank.

    `conv_width` is the kernel of the causal convolution in front (its state holds conv_width - 1
    columns of `conv_channels`); the state is [heads, head_dim, state_dim].
    """

    kind: Literal["mamba2", "gated_delta"]
    heads: int
    head_dim: int
    state_dim: int
    groups: int
    conv_width: int
    conv_channels: int
    dtype: str
    state_dtype: str = "float32"

    @property
    def features(self) -> frozenset[str]:
        """The recurrence is itself the feature a backend must understand."""
        return frozenset({self.kind})


@dataclass(frozen=True)
class RecurrentCapabilities:
    """What a backend can do. `inner_snapshots` no: the planner ends chunks at snapshot points."""

    features: frozenset[str]
    dtypes: frozenset[str]
    capture: Literal["never", "one_token", "uniform", "any"] = "never"
    inner_snapshots: Answer = NOT_DECLARED
    keep: Answer = NOT_DECLARED


@dataclass(frozen=True)
class RecurrentLayer:
    """One layer's state planes, [state slots, *plane shape] each, and its small weights by name."""

    index: int
    planes: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]


@dataclass(frozen=True)
class Snapshots:
    """Where states are to be copied during the step: after `offset` tokens of `row` into `target` slot.

    int32 [n] each, on the host.
    """

    row: Tensor
    offset: Tensor
    target: Tensor


class RecurrentPlan(ABC):
    """A backend's buffers for one graph key or for eager use."""

    @abstractmethod
    def close(self) -> None:
        """Free the buffers."""


class RecurrentBackend(ABC):
    """The recurrence of one layer group."""

    @abstractmethod
    def new_plan(self, limits: Limits) -> RecurrentPlan:
        """Allocate buffers for steps up to `limits`."""

    @abstractmethod
    def fill(
        self, plan: RecurrentPlan, batch: Batch, state_slots: Tensor, snapshots: Snapshots | None, keep: int
    ) -> None:
        """Prepare one step. `state_slots` int32 [R]. `keep` > 0 keeps that many intermediate states."""

    @abstractmethod
    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """Advance the rows' states by their tokens. Mutates the state planes and `out` [T, heads, head_dim].

        `inputs` of mamba2: "xbc" [T, conv_channels], "dt" [T, heads]; of gated_delta: "qkv"
        [T, conv_channels], "beta" and "decay" [T, heads]. Padding tokens do not step a state.
        """

    @abstractmethod
    def fork(self, layer: RecurrentLayer, source: Tensor, target: Tensor) -> None:
        """Copy states between int32 slots [n]."""

    @abstractmethod
    def zero(self, layer: RecurrentLayer, slots: Tensor) -> None:
        """Zero the states of int32 slots [n]."""

    @abstractmethod
    def accept(self, plan: RecurrentPlan, layer: RecurrentLayer, n_accepted: Tensor) -> None:
        """Make the kept state after `n_accepted` int32 [R] tokens current; `Unsupported` without `keep`."""

    @abstractmethod
    def close(self) -> None:
        """Free what the backend holds."""


@dataclass(frozen=True)
class RecurrentBuild:
    """What core gives a backend at build."""

    spec: RecurrentSpec
    layers: tuple[int, ...]
    limits: Limits
    platform: Platform
    device_index: int
    options: BaseModel
    needs: Mapping[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class RecurrentDescriptor(Descriptor):
    """What a plugin's hook returns. `state_layouts` lists planes conv and state of one slot of one layer."""

    capabilities: Callable[[DeviceFacts], RecurrentCapabilities]
    state_layouts: Callable[[RecurrentSpec], Sequence[Plane]]
    build: Callable[[RecurrentBuild], RecurrentBackend]
