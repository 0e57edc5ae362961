"""The operators themselves. `srtkit.spec.ops.SCHEMAS` says what each takes, gives and mutates."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from srtkit.spec.ops import Op, OpFacts, OpsProvider, WeightOp


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, H] / rms(x) * weight [H] → [T, H]; float32 inside, rounded once."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


_OPERATORS: dict[str, Op] = {"rms_norm": rms_norm}


@final
class MyPluginOps(OpsProvider):
    """Hands out the functions above."""

    def bind(self, facts: OpFacts) -> Op | WeightOp:
        """The function of that name, for facts that `accepts` said yes to."""
        return _OPERATORS[facts.op]
