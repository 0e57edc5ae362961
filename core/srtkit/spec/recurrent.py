"""The recurrent contract, `recurrent/1.0`: Mamba2, gated delta rule and kin over state slots.

A sequence's state stands in one state slot per layer: what the recurrence carries, and the last inputs of
the convolution in front of it. Core plans where it is zeroed, forked and snapshot; a backend computes and
never decides. State slot 0 is padding: finite scratch.
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

    `conv_width` is the kernel of the causal convolution in front (its state holds the last conv_width - 1
    columns of `conv_channels`, before the convolution); the state is [heads, head_dim, state_dim]. `head_dim` is
    that of x or v, `state_dim` that of B and C or k and q, of which there are `groups`: head h uses group
    h // (heads / groups). `conv_channels` is heads * head_dim + 2 * groups * state_dim. `dtype` is that of the
    inputs, of `out` and of the convolution's state, `state_dtype` that of the state.
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

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of what `RecurrentBackend.step` takes, the convolved channels first."""
        return {"mamba2": ("xbc", "dt"), "gated_delta": ("qkv", "beta", "decay")}[self.kind]


@dataclass(frozen=True)
class RecurrentCapabilities:
    """What a backend can do. A size or `state_dtype` without a kernel is refused with `Unsupported` at build.

    `inner_snapshots` no: the planner ends chunks at snapshot points, so that every offset is its row's last token.
    """

    features: frozenset[str]
    dtypes: frozenset[str]
    capture: Literal["never", "one_token", "uniform", "any"] = "never"
    inner_snapshots: Answer = NOT_DECLARED
    keep: Answer = NOT_DECLARED


@dataclass(frozen=True)
class RecurrentLayer:
    """One layer's state planes, [state slots, *plane shape] each, and its small weights by name.

    "conv_weight" [conv_channels, conv_width], the newest token's column last, and "conv_bias" [conv_channels]
    (absent: none), both of the spec's dtype. Of mamba2 also "a" float32 [heads], negative (-exp of what is
    usually stored), and "d" float32 [heads] (absent: no skip).
    """

    index: int
    planes: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]


@dataclass(frozen=True)
class Snapshots:
    """Where states are to be copied during the step: after `offset` tokens of `row` into `target` slot.

    int32 [n] each, on the host. `offset` is 1 to the row's number of tokens in this step; no target is a slot
    of a row, and none is given twice.
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
    """The recurrence of one layer group. Holds no state of a step.

    A layer of the model is: projections → `step` → gate, norm, output projection. `step` does the causal
    convolution with its bias and SiLU, the recurrence and the skip; all else is the model's. Whatever differs
    from family to family in how a head's dt, beta or decay is made stays in the model.
    """

    @abstractmethod
    def new_plan(self, limits: Limits) -> RecurrentPlan:
        """Allocate buffers for steps up to `limits`."""

    @abstractmethod
    def fill(
        self, plan: RecurrentPlan, batch: Batch, state_slots: Tensor, snapshots: Snapshots | None, keep: int
    ) -> None:
        """Prepare one step: host work and asynchronous copies. Mutates `plan` only.

        `state_slots` int32 [R], 0 for padding rows, no other slot twice; `batch.slots` are row slots and say nothing
        of states. `keep` > 0: the states after each of the first `keep` tokens of every leading row are kept
        in the plan, layer by layer, until the next fill. Raises `Unsupported` for a batch feature, an inner snapshot
        or a `keep` that is not declared.
        """

    @abstractmethod
    def step(self, plan: RecurrentPlan, layer: RecurrentLayer, inputs: Mapping[str, Tensor], out: Tensor) -> None:
        """Advance the rows' states by their tokens. Mutates the state planes and `out` [T, heads, head_dim].

        `inputs` of mamba2: "xbc" [T, conv_channels], "dt" [T, heads]; of gated_delta: "qkv"
        [T, conv_channels], "beta" and "decay" [T, heads]. Padding tokens step no state, and their `out` is finite.
        Tokens of `inputs` may be strided; inputs and weights are not changed. Recordable.

        xbc and qkv come from the projection: SiLU(convolution + bias) over them gives x [heads, head_dim],
        B and C [groups, state_dim], or q and k [groups, state_dim], v [heads, head_dim], in this order.
        "dt", "beta" and "decay" are float32 and final: dt > 0 with bias, softplus and limits applied, beta
        the share of an error that is corrected, decay ≤ 0 the logarithm of the factor on the state. Per head, S being
        [head_dim, state_dim]:

        mamba2: S ← exp(dt a) S + dt x Bᵀ; out = S C + d x.
        gated_delta: S ← exp(decay) S; S ← S + beta (v - S k) kᵀ; out = S q / √state_dim, where q and k are
        first divided by their length, the root of (sum of squares + 1e-6).
        """

    @abstractmethod
    def fork(self, layer: RecurrentLayer, source: Tensor, target: Tensor) -> None:
        """Copy states, both planes, between int32 slots [n] on the device. Disjoint. Recordable."""

    @abstractmethod
    def zero(self, layer: RecurrentLayer, slots: Tensor) -> None:
        """Zero the states, both planes, of int32 slots [n] on the device, whatever stands there. Recordable."""

    @abstractmethod
    def accept(self, plan: RecurrentPlan, layer: RecurrentLayer, n_accepted: Tensor) -> None:
        """Make the kept state after `n_accepted` int32 [R] tokens current; `Unsupported` without `keep`.

        0 leaves a row as the step left it: rows that verify nothing, and padding. Once for each layer that has
        stepped. Mutates the planes at the slots of the last fill. Recordable.
        """

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
    """What a plugin's hook returns. `state_layouts` lists planes "conv" and "state" of one slot of one layer.

    Their shapes are the backend's choice, conv in the spec's `dtype` and state in its `state_dtype`.
    """

    capabilities: Callable[[DeviceFacts], RecurrentCapabilities]
    state_layouts: Callable[[RecurrentSpec], Sequence[Plane]]
    build: Callable[[RecurrentBuild], RecurrentBackend]
