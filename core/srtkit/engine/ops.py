"""Operators: the torch references, and which provider a layer's operator comes from.

The references are written to be read and to be right (float32 inside); speed is the providers' business.
The choice is made once when a layer is built, and recorded for `srt explain` and `/server_info`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.engine.sampler import drawn, uniform
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


def norm_rope(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> None:
    """The norm of each head of q and k, then its rotation, in place."""
    q.copy_(rms_norm(q, q_weight, eps))
    k.copy_(rms_norm(k, k_weight, eps))
    rope(q, k, cos, sin)


def embed(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of the weight."""
    return weight.index_select(0, ids)


def argmax(logits: Tensor) -> Tensor:
    """The index of each row's largest value, int32 [N]."""
    return _wide(logits).argmax(-1).int()


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seed: Tensor, position: Tensor
) -> Tensor:
    """One token a row, int32 [N], as the sampler draws it."""
    given = torch.where(temperature > 0, temperature, 1.0), top_k, top_p, min_p, uniform(seed, position.long())
    by_place, by_rank = (drawn(logits.float(), *given, by_rank=by_rank) for by_rank in (False, True))
    ids = torch.where((top_k > 0) | (top_p < 1), by_rank, by_place)
    return torch.where(temperature > 0, ids, logits.argmax(-1)).int()


def penalize(
    logits: Tensor,
    slot: Tensor,
    counts: Tensor,
    prompted: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Makes likelier or less likely what a row's prompt or output has in it, in place."""
    wide, count = _wide(logits), counts[slot]
    factor = torch.where(prompted[slot] | (count > 0), repetition[:, None], 1.0)
    wide = torch.where(wide > 0, wide / factor, wide * factor)
    logits.copy_(wide - presence[:, None] * (count > 0) - frequency[:, None] * count)


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


_REFERENCES: dict[str, Op] = {
    op.__name__: op for op in (rms_norm, add_rms_norm, silu_mul, rope, norm_rope, embed, argmax, sample, penalize)
}


@dataclass(frozen=True)
class Offer:
    """A built provider beside its descriptor, under the plugin's name."""

    name: str
    descriptor: OpsDescriptor
    provider: OpsProvider


class Binder(OpBinder):
    """Asks the providers in order; the reference is last.

    `choices` says who serves which facts, with the reasons of those asked before: "linear bfloat16 in=8
    out=4" → "torch (cpu: only up to 4 inputs)".
    """

    def __init__(self, offers: Sequence[Offer], device: DeviceFacts) -> None:
        self._offers = tuple(offers)
        self._device = device
        self.choices: dict[str, str] = {}

    def weight_op(self, name: str, dtype: str, **sizes: int) -> WeightOp:
        bound = self.op(name, dtype, **sizes)
        assert isinstance(bound, WeightOp), f"{name} is not a weight-side operator"
        return bound

    def op(self, name: str, dtype: str, **sizes: int) -> Op:
        if name not in SCHEMAS:
            known = ", ".join(sorted(SCHEMAS))
            raise Unsupported(f"op:{name}", "no operator of this version has that name", f"known: {known}")
        facts = OpFacts(name, dtype, self._device, sizes)
        asked = [(one, one.descriptor.accepts(facts)) for one in self._offers if name in one.descriptor.names]
        chosen = next((one for one, answer in asked if answer), None)
        provider = chosen.name if chosen else REFERENCE
        refused = [f"{one.name}: {answer.reason}" for one, answer in asked if isinstance(answer, No)]
        shown = " ".join((name, dtype, *(f"{size}={n}" for size, n in sizes.items())))
        self.choices[shown] = f"{provider} ({'; '.join(refused)})" if refused else provider
        reference = ReferenceLinear() if SCHEMAS[name].weight_side else _REFERENCES[name]
        bound = chosen.provider.bind(facts) if chosen else reference
        if isinstance(bound, WeightOp) != SCHEMAS[name].weight_side:
            raise PluginBroken(f"ops:{provider}", f"bound {name} to {type(bound).__name__}, which is of the wrong sort")
        return bound
