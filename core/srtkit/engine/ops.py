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
from srtkit.spec.ops import SCHEMAS, AnyOp, ExpertsOp, Op, OpBinder, OpFacts, OpsDescriptor, OpsProvider, WeightOp

REFERENCE = "torch"


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension, rounded once."""
    return F.rms_norm(_wide(x), weight.shape, _wide(weight), eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`residual` += x, then the norm of it."""
    return rms_norm(residual.add_(x), weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, where gate is the first half of the last dimension."""
    gate, up = _wide(gate_up).chunk(2, -1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotates the first R = cos.shape[-1] of each head of q and k in place."""
    size = cos.shape[-1]
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


def penalize(logits: Tensor, slot: Tensor, counts: Tensor, prompted: Tensor, *penalties: Tensor) -> None:
    """Makes likelier or less likely what a row's prompt or output has in it, in place.

    `penalties`: repetition, presence and frequency.
    """
    repetition, presence, frequency = (one[:, None] for one in penalties)
    wide, count = _wide(logits), counts[slot]
    factor = torch.where(prompted[slot] | (count > 0), repetition, 1.0)
    wide = torch.where(wide > 0, wide / factor, wide * factor)
    logits.copy_(wide - presence * (count > 0) - frequency * count)


class ReferenceLinear(WeightOp):
    """`torch.nn.functional.linear` on the weight as loaded."""

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        self._given = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, *self._given)

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
        self._offers, self._device = tuple(offers), device
        self.choices: dict[str, str] = {}

    def op(self, name: str, dtype: str, **sizes: int) -> Op:
        return self.op_or(_REFERENCES.get(name), name, dtype, **sizes)

    def weight_op(self, name: str, dtype: str, **sizes: int) -> WeightOp:
        return self.op_or(ReferenceLinear() if name == "linear" else None, name, dtype, **sizes)

    def op_or(self, reference: AnyOp | None, name: str, dtype: str, **sizes: int) -> AnyOp:
        if name not in SCHEMAS or reference is None:
            known = ", ".join(sorted(SCHEMAS))
            raise Unsupported(f"op:{name}", "no operator has that name, or core no reference of it", f"known: {known}")
        facts = OpFacts(name, dtype, self._device, sizes)
        asked = [(one, one.descriptor.accepts(facts)) for one in self._offers if name in one.descriptor.names]
        chosen = next((one for one, answer in asked if answer), None)
        provider = chosen.name if chosen else REFERENCE
        refused = [f"{one.name}: {answer.reason}" for one, answer in asked if isinstance(answer, No)]
        shown = " ".join((name, dtype, *(f"{size}={n}" for size, n in sizes.items())))
        self.choices[shown] = f"{provider} ({'; '.join(refused)})" if refused else provider
        bound = chosen.provider.bind(facts) if chosen else reference
        if any(isinstance(bound, sort) != isinstance(reference, sort) for sort in (WeightOp, ExpertsOp)):
            raise PluginBroken(f"ops:{provider}", f"bound {name} to {type(bound).__name__}, which is of the wrong sort")
        return bound  # type: ignore[return-value]
