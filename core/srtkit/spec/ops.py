"""The ops contract, `ops/1.0`: named operators with a torch reference, chosen once at build.

An op has a name, a schema (`OpSchema`: arguments, what it mutates) and a reference: in core, or brought by the layer
(`OpBinder.op_or`). A provider offers implementations with a predicate over static facts; the choice for each (op,
layer) is made when the layer is built: no dispatch per call. Weight-side ops pack their weight after loading.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from srtkit.spec.capabilities import Answer, Descriptor
from srtkit.spec.facts import DeviceFacts, Limits

if TYPE_CHECKING:
    from torch import Tensor

    from srtkit.spec.platform import Platform


@dataclass(frozen=True)
class OpSchema:
    """An operator of this contract: its call, and what it mutates."""

    name: str
    call: str
    mutates: tuple[str, ...] = ()
    weight_side: bool = False


# Operators known to this version. A later minor adds names; a provider offers those it has.
SCHEMAS: dict[str, OpSchema] = {
    schema.name: schema
    for schema in (
        OpSchema("rms_norm", "(x [T, H], weight [H], eps) -> [T, H]; float32 inside"),
        OpSchema(
            "add_rms_norm",
            "(x [T, H], residual [T, H], weight [H], eps) -> [T, H]; residual += x, then rms_norm of it",
            mutates=("residual",),
        ),
        OpSchema("silu_mul", "(gate_up [T, 2 I]) -> [T, I]; silu(gate) * up"),
        OpSchema(
            "rope",
            "(q [T, Hq, D], k [T, Hk, D], cos [T, 1, R], sin [T, 1, R]) -> None; the first R of D become "
            "x * cos + swap(x) * sin, where swap exchanges the halves; cos is a half twice, sin a half negated, then "
            "plain; cos and sin are of q's dtype; q and k may be strided in T",
            mutates=("q", "k"),
        ),
        OpSchema(
            "norm_rope",
            "(q [T, Hq, D], k [T, Hk, D], q_weight [D], k_weight [D], cos [T, 1, D], sin [T, 1, D], eps) -> None; "
            "rms_norm of each head of q and k, then rope of all of it",
            mutates=("q", "k"),
        ),
        OpSchema("embed", "(ids int32 [T], weight [V, H]) -> [T, H]; the rows of the weight that ids name"),
        OpSchema("argmax", "(logits [N, V]) -> int32 [N]; the smallest index of a row's maximum; NaN is above all"),
        OpSchema(
            "sample",
            "(logits [N, V], temperature [N], top_k [N], top_p [N], min_p [N], seed [N], position [N]) -> int32 [N];"
            " argmax at temperature 0, else the token at which the sum of weights, exp(logit / temperature), exceeds"
            " u of all: in order of ids, or of rank (equal ones by id) where top_k > 0 or top_p < 1; filters keep a "
            "share of top_p of the top_k first, and weights from min_p of the largest on; u in [0, 1) is "
            "splitmix64(seed, position); seed int64, top_k and position int32 or int64, the rest float32",
        ),
        OpSchema(
            "penalize",
            "(logits [N, V], slot int64 [N], counts int32 [S, V], prompted bool [S, V], repetition [N], presence [N], "
            "frequency [N]) -> None; float32 inside: of tokens that are prompted or counted in the row's slot, logits "
            "above 0 are divided by repetition, others multiplied; those counted lose presence + frequency * count",
            mutates=("logits",),
        ),
        OpSchema(
            "route",
            "(logits [T, E]) -> weights float32 [T, k], experts int32 or int64 [T, k]: the k largest of each row's "
            "float32 softmax in any order, made to sum to 1 if `renormalised`; of a row of NaN, NaN and numbers < E",
        ),
        OpSchema(
            "experts",
            "(x [T, H], weights float32 [T, k], experts int32 or int64 [T, k]) -> [T, H]; the weighted sum of what a "
            "token's experts make of it: down @ (silu(gate) * up), where gate_up [E, 2 I, H] and down [E, H, I]",
            weight_side=True,
        ),
        OpSchema("linear", "(x [T, in]) -> [T, out]; weight [out, in], bias [out] or None", weight_side=True),
    )
}


@dataclass(frozen=True)
class OpFacts:
    """Static facts a predicate decides by. Sizes are those of the layer: "in", "out", "hidden", "head_dim" …"""

    op: str
    dtype: str
    device: DeviceFacts
    sizes: Mapping[str, int] = field(default_factory=dict)


class WeightOp(ABC):
    """An op that owns a weight ("linear"): packed after loading, called per step."""

    @abstractmethod
    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take the loaded weight in the form the op wants. Called again after a reload.

        The caller drops its own reference where `keeps_weight` is False.
        """

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] → [T, out]."""

    @property
    @abstractmethod
    def keeps_weight(self) -> bool:
        """Whether the given weight tensor itself stays in use after `pack`."""


class ExpertsOp(ABC):
    """The op "experts": owns both weights of all experts, or a rank's share of them."""

    @abstractmethod
    def pack(self, gate_up: Tensor, down: Tensor) -> bool:
        """Take the loaded weights, [E, 2 I, H] and [E, H, I]; called again after a reload.

        Returns whether the given tensors themselves stay in use; the caller drops its own references where not.
        """

    @abstractmethod
    def __call__(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """x [T, H], weights float32 [T, k] and numbers of experts [T, k] → [T, H]."""


Op = Callable[..., Any]
AnyOp = TypeVar("AnyOp", bound=Op)


@dataclass(frozen=True)
class OpsBuild:
    """What core gives a provider at build."""

    platform: Platform
    device_index: int
    limits: Limits
    options: BaseModel
    needs: Mapping[str, object] | None = None


class OpsProvider(ABC):
    """Implementations of a provider, ready to be bound."""

    @abstractmethod
    def bind(self, facts: OpFacts) -> Op | WeightOp:
        """The callable for a layer; for a weight-side op a new `WeightOp`. Facts passed `accepts`."""


@dataclass(frozen=True, kw_only=True)
class OpsDescriptor(Descriptor):
    """What a plugin's hook returns. `accepts(facts)` is the predicate: yes, or no with the reason."""

    names: frozenset[str]
    accepts: Callable[[OpFacts], Answer]
    build: Callable[[OpsBuild], OpsProvider]


class OpBinder(ABC):
    """How a layer gets its operators at build; core walks the providers, the torch reference is last."""

    @abstractmethod
    def op(self, name: str, dtype: str, **sizes: int) -> Op:
        """Bind a plain operator."""

    @abstractmethod
    def weight_op(self, name: str, dtype: str, **sizes: int) -> WeightOp:
        """Bind a weight-side operator."""

    def op_or(self, reference: AnyOp, name: str, dtype: str, **sizes: int) -> AnyOp:
        """A provider's operator, or `reference`: for "route" and "experts", whose reference the layer brings."""
        return reference
