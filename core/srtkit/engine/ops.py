"""Operators: the torch references, and which provider a layer's operator comes from.

The references are written to be read and to be right (float32 inside); speed is the providers' business.
The choice is made once when a layer is built, and recorded for `srt explain` and `/server_info`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.capabilities import No
from srtkit.spec.errors import PluginBroken, Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.ops import SCHEMAS, Op, OpBinder, OpFacts, OpsDescriptor, OpsProvider, WeightOp

REFERENCE = "torch"


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension, rounded once."""
    wide = _wide(x)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * _wide(weight)).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`residual` += x, then the norm of it."""
    residual.add_(x)
    return rms_norm(residual, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, where gate is the first half of the last dimension."""
    gate, up = _wide(gate_up).chunk(2, -1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotates the first R = cos.shape[-1] of each head of q and k in place."""
    size = cos.shape[-1]
    cos, sin = _wide(cos), _wide(sin)
    for x in (q, k):
        part = x[..., :size]
        wide = _wide(part)
        part.copy_(wide * cos + wide.roll(size // 2, -1) * sin)


class ReferenceLinear(WeightOp):
    """`torch.nn.functional.linear` on the weight as loaded."""

    def __init__(self) -> None:
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        assert self._weight is not None, "called before pack"
        return F.linear(x, self._weight, self._bias)

    @property
    def keeps_weight(self) -> bool:
        return True


_REFERENCES: dict[str, Callable[[], Op | WeightOp]] = {
    "rms_norm": lambda: rms_norm,
    "add_rms_norm": lambda: add_rms_norm,
    "silu_mul": lambda: silu_mul,
    "rope": lambda: rope,
    "linear": ReferenceLinear,
}


@dataclass(frozen=True)
class Offer:
    """A built provider beside its descriptor, under the plugin's name."""

    name: str
    descriptor: OpsDescriptor
    provider: OpsProvider


@dataclass
class Choice:
    """Who serves an operator of these facts, for how many layers, and why those asked before do not."""

    op: str
    dtype: str
    sizes: Mapping[str, int]
    provider: str
    refused: Mapping[str, str] = field(default_factory=dict)
    layers: int = 0


class Binder(OpBinder):
    """Asks the providers in order; the reference is last. `choices` are in the order of first use."""

    def __init__(self, offers: Sequence[Offer], device: DeviceFacts) -> None:
        self._offers = tuple(offers)
        self._device = device
        self._choices: dict[tuple[object, ...], Choice] = {}

    @property
    def choices(self) -> Sequence[Choice]:
        """What was chosen so far, one entry for each distinct set of facts."""
        return tuple(self._choices.values())

    def op(self, name: str, dtype: str, **sizes: int) -> Op:
        return self._bind(name, dtype, sizes)

    def weight_op(self, name: str, dtype: str, **sizes: int) -> WeightOp:
        bound = self._bind(name, dtype, sizes)
        assert isinstance(bound, WeightOp), f"{name} is not a weight-side operator"
        return bound

    def _bind(self, name: str, dtype: str, sizes: dict[str, int]) -> Op | WeightOp:
        if name not in SCHEMAS:
            known = ", ".join(sorted(SCHEMAS))
            raise Unsupported(f"op:{name}", "no operator of this version has that name", f"known: {known}")
        facts = OpFacts(name, dtype, self._device, sizes)
        refused: dict[str, str] = {}
        chosen: Offer | None = None
        for offer in self._offers:
            if name not in offer.descriptor.names:
                continue
            answer = offer.descriptor.accepts(facts)
            if not isinstance(answer, No):
                chosen = offer
                break
            refused[offer.name] = answer.reason
        provider = chosen.name if chosen else REFERENCE
        key = (name, dtype, *sorted(sizes.items()))
        self._choices.setdefault(key, Choice(name, dtype, sizes, provider, refused)).layers += 1
        bound = chosen.provider.bind(facts) if chosen else _REFERENCES[name]()
        if isinstance(bound, WeightOp) != SCHEMAS[name].weight_side:
            raise PluginBroken(f"ops:{provider}", f"bound {name} to {type(bound).__name__}, which is of the wrong sort")
        return bound
