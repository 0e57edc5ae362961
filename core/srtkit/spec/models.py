"""The models contract, `models/1.0`: architecture name → what the model needs, and a module.

`plan` is pure and torch-free: layer specs, sizes, and the weight map as data, so that memory can be
planned and plugins checked before any weight is read. `build` makes the module from shared layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from srtkit.spec.attention import AttentionSpec
from srtkit.spec.capabilities import Descriptor
from srtkit.spec.facts import Shard
from srtkit.spec.kv import FULL, ITEM_BYTES, Component
from srtkit.spec.recurrent import RecurrentSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from srtkit.spec.ops import OpBinder
    from srtkit.spec.platform import Communicator


@dataclass(frozen=True)
class WeightEntry:
    """One parameter of this rank and where it comes from.

    `sources` are canonical weight names, concatenated along dimension 0 (fused qkv, gate and up), each
    first sliced per rank along `slice_dim` (None: replicated). `shape` is the parameter's own, per rank;
    `source_shapes` are the full stored shapes. `tied_to` names the parameter that serves in this one's place:
    then nothing is read for it, whether the source has it or not.
    """

    parameter: str
    shape: tuple[int, ...]
    dtype: str
    sources: tuple[str, ...]
    source_shapes: tuple[tuple[int, ...], ...]
    slice_dim: int | None = None
    tied_to: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the parameter; a tied one costs nothing by itself."""
        return 0 if self.tied_to else prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class ModelPlan:
    """What core must know of a model, per rank. `attention` and `recurrent` map layer index to spec.

    `components`: all that its layers use, by number; recurrent layers use the one of kind "slot".
    `ignored` are endings of stored names that the model knows of and does not need; any other stored
    weight that no entry names is an error.
    """

    architecture: str
    dtype: str
    vocab_size: int
    hidden_size: int
    max_context: int
    attention: Mapping[int, AttentionSpec]
    weights: Sequence[WeightEntry]
    recurrent: Mapping[int, RecurrentSpec] = field(default_factory=dict)
    components: tuple[Component, ...] = (FULL,)
    position_axes: Literal[1, 3] = 1
    intermediate_size: int = 0
    ignored: tuple[str, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights of this rank."""
        return sum(entry.nbytes for entry in self.weights)


@dataclass(frozen=True)
class PlanRequest:
    """What `plan` may use: the config with Hugging Face keys, the run's dtypes, this rank's share."""

    config: Mapping[str, Any]
    dtype: str
    kv_dtype: str
    shard: Shard = Shard()


@dataclass
class ModelInputs:
    """One step's inputs, all at fixed addresses under capture.

    `ids` int32 [T]; `positions` int32 [p, T]; `logit_rows` int32 [N], token indices whose logits are
    wanted; `embeds` [T, H] with `embed_mask` bool [T] replaces embeddings; `hidden` [T, H] of the stage before.
    """

    ids: Tensor
    positions: Tensor
    logit_rows: Tensor
    embeds: Tensor | None = None
    embed_mask: Tensor | None = None
    hidden: Tensor | None = None


@dataclass
class ModelOutput:
    """`logits` [N, vocab] of the wanted tokens, of the model's dtype or float32; `hidden` [T, H]; `taps` by layer."""

    logits: Tensor
    hidden: Tensor
    taps: Mapping[int, Tensor] = field(default_factory=dict)


class Model(ABC):
    """A built model. Final classes are torch modules that also satisfy this."""

    @abstractmethod
    def run(self, inputs: ModelInputs) -> ModelOutput:
        """One forward over the step's tokens; attention goes through `srtkit::attend`."""

    @abstractmethod
    def slots(self) -> Mapping[str, Tensor]:
        """Parameters to fill, by the names of the weight map."""

    @abstractmethod
    def pack(self) -> None:
        """After loading, and again after a reload: let weight-side ops take their weights."""

    def recurrent_weights(self) -> Mapping[int, Mapping[str, Tensor]]:
        """Layer index → the small weights that `RecurrentLayer` names, at fixed addresses. Asked once, after `pack`."""
        return {}


@dataclass(frozen=True)
class ModelBuild:
    """What core gives a model at build."""

    plan: ModelPlan
    config: Mapping[str, Any]
    device: torch.device
    ops: OpBinder
    shard: Shard
    max_tokens: int
    communicator: Communicator | None = None
    taps: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelsDescriptor(Descriptor):
    """What a plugin's hook returns. `plan` raises `Unsupported` naming the config key it cannot serve."""

    architectures: frozenset[str]
    plan: Callable[[PlanRequest], ModelPlan]
    build: Callable[[ModelBuild], Model]
