"""The attention contract, `attention/1.0`: paged attention of one layer group.

A backend serves one layer group (layers of equal spec in one component) in one role. Core fills a plan
once per step, outside any graph; `store` and `attend` run per layer and may be recorded. The kind of a
step is data: query lengths, a tree mask, a flag; there is no mode. Conventions: a window is W visible
tokens, itself included; masks are bottom-right aligned; index tensors are int32 and addresses are
computed in int64; log-sum-exp is natural log, float32; page 0 and padding are finite scratch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import BaseModel

from srtkit.spec.capabilities import NOT_DECLARED, Answer, Descriptor
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.kv import KVLayout
from srtkit.spec.step_plan import Ints

if TYPE_CHECKING:
    from torch import Tensor

    from srtkit.spec.platform import Platform

Role = Literal["target", "draft"]


@dataclass(frozen=True)
class MlaDims:
    """Multi-head latent attention: the stored entry is latent (`rank`) and rope part (`rope`)."""

    rank: int
    rope: int
    nope: int
    v_head_dim: int


@dataclass(frozen=True)
class AttentionSpec:
    """What a layer computes. Layers of equal spec and component form a layer group. Head counts are per rank.

    `window` 0 means all earlier tokens; `soft_cap` 0 means none (scores become cap * tanh(s / cap));
    `scale` multiplies q·k. `kv_dtype` is the dtype of stored KV.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    scale: float
    dtype: str
    kv_dtype: str
    window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False
    causal: bool = True
    mla: MlaDims | None = None
    component: str = "full"

    @property
    def features(self) -> frozenset[str]:
        """Names of what changes the result beyond plain causal attention."""
        named = {
            "window": self.window > 0,
            "soft_cap": self.soft_cap > 0,
            "sinks": self.sinks,
            "non_causal": not self.causal,
            "mla": self.mla is not None,
            "fp8_kv": self.kv_dtype.startswith("float8"),
        }
        return frozenset(name for name, used in named.items() if used)


@dataclass(frozen=True)
class LayerGroup:
    """Layers (indices in the model) that share spec and layout, and with it one backend and one plan."""

    name: str
    spec: AttentionSpec
    layers: tuple[int, ...]


@dataclass(frozen=True)
class AttentionCapabilities:
    """What a backend can do on a device. Unset means no.

    `features`: names of spec and batch features it understands. `page_sizes`: pool page sizes it
    takes, preferred first. `host_lengths`: what it needs to know on the host in `fill`.
    `capture`: which steps may be recorded. `max_q_len_decode`: longest uniform query of leading rows.
    `batch_invariant`: a row's result does not depend on the other rows.
    """

    dtypes: frozenset[str]
    kv_dtypes: frozenset[str]
    head_dims: frozenset[int] | range
    page_sizes: Sequence[int]
    features: frozenset[str] = frozenset()
    max_gqa_ratio: int = 256
    host_lengths: Literal["none", "upper", "exact"] = "exact"
    capture: Literal["never", "one_token", "uniform", "any"] = "never"
    max_q_len_decode: int = 1
    lse: Answer = NOT_DECLARED
    dense: Answer = NOT_DECLARED
    advance: Answer = NOT_DECLARED
    move_slots: Answer = NOT_DECLARED
    prefix_groups: Answer = NOT_DECLARED
    batch_invariant: Answer = NOT_DECLARED
    store_rotated: Answer = NOT_DECLARED


@dataclass(frozen=True)
class TreeMask:
    """Feature "tree_mask": which draft tokens see which. The committed prefix is always visible.

    `bits` [leading rows, q_len, words] int32, bit j of word w set: query i sees draft token 32 w + j.
    """

    bits: Tensor


@dataclass(frozen=True)
class PrefixGroups:
    """Hint: rows that share their leading pages. Groups are disjoint runs of leading rows.

    All int32 [groups]: first row, members, leading pages shared. Host copies, unpadded.
    """

    first_row: Ints
    members: Ints
    pages: Ints


@dataclass
class Batch:
    """The rows of one step as every layer group sees them; device tensors keep their address per key.

    R rows and T tokens include padding where the step is recorded: padding rows have slot 0, length 1, query 1 and
    page 0. The first `leading` rows have `q_len` query tokens each, the rest any number. A mixed step that is recorded
    has no leading rows, and its padding rows no query but the last, which has all that are over: they see at most one
    token, and whatever is written for them is finite.

    `cu_q` int32 [R + 1]; `context` int32 [R], tokens visible after this step's own are stored;
    `positions` int32 [T]; `slots` int32 [R]. `host_q`, `host_context` are numpy twins: exact if
    `exact`, else host_context is an upper bound. `features` are those of this batch ("tree_mask").
    """

    rows: int
    tokens: int
    leading: int
    q_len: int
    cu_q: Tensor
    context: Tensor
    positions: Tensor
    slots: Tensor
    host_q: Ints
    host_context: Ints
    exact: bool = True
    features: frozenset[str] = frozenset()
    tree: TreeMask | None = None
    groups: PrefixGroups | None = None


@dataclass
class GroupView:
    """Where a component's KV of these rows stands.

    `page_table` int32 [R, max_pages], row-ordered, tail filled with page 0; `slot_mapping` int32 [T],
    page * page_tokens + offset of each query token (padding tokens point into page 0);
    `host_pages` int32 [R, max_pages], the numpy twin. The rows' tables are valid until the next fill.
    """

    page_tokens: int
    page_table: Tensor
    slot_mapping: Tensor
    host_pages: Ints


@dataclass(frozen=True)
class LayerHandle:
    """One layer's own data: plane views [pages, *plane shape], scales and sinks, all at fixed addresses.

    `sinks` float32 [q_heads]; `scales` float32 device scalars or [kv_heads] named "q", "k", "v" for FP8 KV.
    """

    index: int
    planes: Mapping[str, Tensor]
    sinks: Tensor | None = None
    scales: Mapping[str, Tensor] | None = None


class Rows(Enum):
    """Which rows a call covers: leading rows have the decode query length and stand first."""

    ALL = "all"
    LEADING = "leading"
    REST = "rest"


class AttentionPlan(ABC):
    """A backend's buffers for one graph key or for eager use. Any number may be alive.

    Everything that changes from step to step lives here, at fixed addresses, never in the backend.
    """

    @abstractmethod
    def close(self) -> None:
        """Free the buffers. The plan is not used afterwards."""


class AttentionBackend(ABC):
    """Paged attention of one layer group. Holds no state of a step."""

    @abstractmethod
    def new_plan(self, limits: Limits) -> AttentionPlan:
        """Allocate the buffers for steps up to `limits`. Called at start, never inside a step."""

    @abstractmethod
    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Prepare one step: host work and asynchronous copies, no device synchronisation.

        Mutates `plan` only. Raises `Unsupported` for a batch feature it does not declare.
        """

    @abstractmethod
    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Write the step's new entries: k [T, kv_heads, head_dim], v [T, kv_heads, v_head_dim].

        For MLA k is the latent [T, rank] and v the rope part [T, rope]. Mutates the layer's planes at
        the view's slot mapping and nothing else. Recordable.
        """

    @abstractmethod
    def attend(
        self,
        plan: AttentionPlan,
        layer: LayerHandle,
        q: Tensor,
        out: Tensor,
        *,
        rows: Rows = Rows.ALL,
        fresh: tuple[Tensor, Tensor] | None = None,
        lse: Tensor | None = None,
    ) -> None:
        """Attend over stored KV: q [T, q_heads, head_dim] → out [T, q_heads, v_head_dim].

        Covers the tokens of `rows`; q and out are always those of the whole step. `fresh` is a hint:
        this step's (k, v) as given to `store`; tokens may be strided. Writes `out` and, when given, `lse`
        [T, q_heads] float32. Recordable.
        """

    @abstractmethod
    def parts(self) -> AttentionParts:
        """The optional calls this backend has; constant over its life."""

    @abstractmethod
    def close(self) -> None:
        """Free what the backend holds."""


class DenseAttention(ABC):
    """Optional: attention over dense tensors, and reading stored entries back."""

    @abstractmethod
    def attend_dense(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu: tuple[Tensor, Tensor],
        out: Tensor,
        *,
        causal: bool = True,
        lse: Tensor | None = None,
    ) -> None:
        """Variable-length attention: `cu` = (cu_q, cu_k) int32 [rows + 1]; masks bottom-right aligned."""

    @abstractmethod
    def gather(
        self, plan: AttentionPlan, layer: LayerHandle, row: int, start: int, stop: int, out: tuple[Tensor, Tensor]
    ) -> None:
        """Copy stored tokens [start, stop) of a row to dense k and v, dequantised. Writes `out` only."""

    @abstractmethod
    def merge(self, out: Tensor, lse: Tensor, out2: Tensor, lse2: Tensor) -> None:
        """Fold a second partial result into the first, in place, by log-sum-exp."""


class PlanAdvance(ABC):
    """Optional: recompute a plan on the device after lengths grew (multi-step drafting)."""

    @abstractmethod
    def advance(self, plan: AttentionPlan) -> None:
        """Recompute what depends on lengths from device memory. Recordable."""


class SlotMover(ABC):
    """Optional: move single tokens between slots (tree acceptance, partial copy-on-write)."""

    @abstractmethod
    def move_slots(self, layer: LayerHandle, source: Tensor, target: Tensor) -> None:
        """Copy entries at int32 slots `source` [n] to `target` [n], all planes. Disjoint. Recordable."""


class Rotation(NamedTuple):
    """What the operator `rope` does to q and k by cos and sin; with `norms` (q_weight, k_weight, eps) `norm_rope`."""

    cos: Tensor
    sin: Tensor
    norms: tuple[Tensor, Tensor, float] | None = None


class RotatedStore(ABC):
    """Optional: the rotation of queries and keys and the store in one, where the step has a plan of its own."""

    @abstractmethod
    def store_rotated(
        self, plan: AttentionPlan, layer: LayerHandle, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation
    ) -> None:
        """The rotation of q and k, then `store`.

        q [T, q_heads, head_dim], k and v as `store` has them; tokens may be strided. Rotates q in place; k is scratch
        afterwards. Recordable.
        """


@dataclass(frozen=True)
class AttentionParts:
    """The optional calls of a backend; None where it has none. Must agree with its capabilities."""

    dense: DenseAttention | None = None
    advance: PlanAdvance | None = None
    mover: SlotMover | None = None
    rotated: RotatedStore | None = None


@dataclass(frozen=True)
class AttentionBuild:
    """What core gives a backend at build. `needs` holds the parts it asked for, by role."""

    group: LayerGroup
    layout: KVLayout
    limits: Limits
    platform: Platform
    device_index: int
    options: BaseModel
    role: Role = "target"
    needs: Mapping[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class AttentionDescriptor(Descriptor):
    """What a plugin's hook returns. All but `build` are pure functions of data and import no torch.

    `kv_layouts(spec, page_size, facts)` lists acceptable layouts, best first, [] if none.
    `build` imports the heavy module; it may raise `DeviceAbsent` or `Unsupported`.
    """

    capabilities: Callable[[DeviceFacts], AttentionCapabilities]
    kv_layouts: Callable[[AttentionSpec, int, DeviceFacts], Sequence[KVLayout]]
    build: Callable[[AttentionBuild], AttentionBackend]


def check_spec(part: str, spec: AttentionSpec, can: AttentionCapabilities) -> str:
    """Why `can` does not cover `spec`, as one sentence; empty when it does."""
    missing = spec.features - can.features
    if missing:
        return f"does not understand the feature {', '.join(sorted(missing))}"
    if spec.dtype not in can.dtypes:
        return f"does not compute in {spec.dtype} (it does: {', '.join(sorted(can.dtypes))})"
    if spec.kv_dtype not in can.kv_dtypes:
        return f"does not store KV in {spec.kv_dtype} (it does: {', '.join(sorted(can.kv_dtypes))})"
    if spec.head_dim not in can.head_dims:
        return f"has no kernel for head size {spec.head_dim}"
    if spec.q_heads % spec.kv_heads or spec.q_heads // spec.kv_heads > can.max_gqa_ratio:
        return f"cannot share {spec.kv_heads} KV heads among {spec.q_heads} query heads"
    return ""
