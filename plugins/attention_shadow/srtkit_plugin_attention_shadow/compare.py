"""How far a result is from the reference's, head by head, and what is too far. Knows no backend and no pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.step_plan import Ints

LIMITS = {"float32": 4e-5, "float16": 8e-3, "bfloat16": 4.8e-2}
"""Relative L2 error of one head of one token: the conformance suite's ceiling of a dtype, times four as for one row."""
LIMIT = 4e-5
"""Of other dtypes."""
LISTED = 8


@dataclass(frozen=True)
class Finding:
    """The worst token of one row and head. `position` is the query's in its sequence; `error` is inf for NaN."""

    row: int
    slot: int
    token: int
    position: int
    head: int
    error: float
    limit: float

    def __str__(self) -> str:
        where = f"row {self.row} (slot {self.slot}), head {self.head}, position {self.position}"
        return f"{where}: relative error {self.error:.3g}, limit {self.limit:.2g}"


def limit_of(dtype: str, tolerance: float) -> float:
    """The limit for a dtype by torch's name."""
    return LIMITS.get(dtype, LIMIT) * tolerance


def errors(out: Tensor, reference: Tensor) -> Tensor:
    """Relative L2 error of each token's heads: [T, heads, dv] twice → float64 [T, heads] on the CPU.

    Infinite where `out` is not finite and the reference is; NaN nowhere. A head that is small beside the others of
    its token is measured by a twentieth of their root mean square, so that cancellation is no finding.
    """
    truth = reference.double()
    off, size = (out.double() - truth).norm(dim=-1), truth.norm(dim=-1)
    typical = size.square().mean(-1, keepdim=True).sqrt()
    error = off / torch.maximum(size, typical / 20).clamp(min=1e-30)
    finite, expected = (torch.isfinite(one).all(-1) for one in (out, reference))
    error = torch.where(finite, error, torch.inf)
    return torch.where(expected, error, 0.0).cpu()


def findings(error: Tensor, limit: float, host_q: Ints, slots: Ints, positions: Ints) -> list[Finding]:
    """The worst token of every (row, head) beyond the limit, worst first.

    `error` [T, heads]; `host_q` int32 [R] tokens of each row; `slots` int32 [R], 0 for padding rows, which are left
    out; `positions` int32 [T].
    """
    found = []
    ends = np.cumsum(host_q)
    for row in np.flatnonzero((slots != 0) & (host_q > 0)).tolist():
        first = int(ends[row] - host_q[row])
        worst, token = error[first : int(ends[row])].max(dim=0)
        for head in torch.nonzero(worst > limit).flatten().tolist():
            at = first + int(token[head])
            seen = (row, int(slots[row]), at, int(positions[at]), head, float(worst[head]), limit)
            found.append(Finding(*seen))
    return sorted(found, key=lambda one: (-one.error, one.row, one.head))
