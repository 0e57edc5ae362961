"""How near is near enough: gates relative to what a plain computation in the same dtype gives. Knows no step.

A: relative L2 error of the whole. B: largest error. C: relative L2 error of each row, which finds one bad
row among many. D: nothing but finite numbers. And log-sum-exp at twice gate A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from srtkit.spec.layers import DTYPES
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.threads import one_thread

FLOOR = 1e-6
"""Relative; twice to five times the error of float32 itself, so that the order of a sum does not matter."""
CEILINGS = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.2e-2}
"""Relative L2 error above which nothing is right, whatever the yardstick says."""
CEILING = 1e-5
"""Of other dtypes."""


@dataclass(frozen=True)
class Truth:
    """What a step must give: `out` and `lse` in float64, and `same`, `same_lse` as its dtype can give them.

    `rows` are the tokens of each row, by which gate C judges.
    """

    out: Tensor
    lse: Tensor
    same: Tensor
    same_lse: Tensor
    rows: Sequence[slice]


@dataclass
class Margins:
    """The share of each gate's limit that was used, the worst of all steps seen."""

    worst: dict[str, float] = field(default_factory=dict)

    def gate(self, name: str, observed: float, limit: float, where: object) -> None:
        """Note one measurement; raise `Failed` when it exceeds its limit (or is no number)."""
        self.worst[name] = max(self.worst.get(name, 0.0), observed / limit)
        if not observed <= limit:
            raise Failed(f"{name}: {observed:.3g} exceeds {limit:.3g}; {where}", observed=observed, limit=limit)

    def figures(self) -> Mapping[str, float]:
        """By gate: how much of the limit was used, 1 being all."""
        return {f"{name}, share of the limit": round(share, 3) for name, share in self.worst.items()}

    @one_thread()
    def judge(self, truth: Truth, dtype: str, out: Tensor, lse: Tensor | None, where: object) -> None:
        """Hold out [n, heads, dv] and lse [n, heads], if there is one, against the truth of the same tokens."""
        finite(out, "out", where)
        out = out.double()
        plain = relative(truth.same, truth.out)
        limit = 1.5 * plain + FLOOR
        self.gate("gate A (relative L2 error)", relative(out, truth.out), limit, where)
        self.gate("ceiling of the dtype", relative(out, truth.out), CEILINGS.get(dtype, CEILING), where)
        size = float(truth.out.abs().max())
        largest = float((truth.same - truth.out).abs().max())
        self.gate("gate B (largest error)", float((out - truth.out).abs().max()), 3 * largest + FLOOR * size, where)
        for number, row in enumerate(truth.rows):
            allowed = 4 * max(plain, relative(truth.same[row], truth.out[row])) + FLOOR
            told = f"row {number} of {where}"
            self.gate("gate C (relative L2 error of a row)", relative(out[row], truth.out[row]), allowed, told)
        if lse is not None:
            typical = max(plain, torch.finfo(DTYPES[dtype]).eps / 4)  # one visible token: out is exact, lse is not
            self._judge_lse(truth, lse, 1.5 * typical + FLOOR, where)

    def _judge_lse(self, truth: Truth, lse: Tensor, limit: float, where: object) -> None:
        """An error in lse multiplies a part's weight in a merge, so it is held to the limit of out, as an absolute."""
        finite(lse, "lse", where)
        size = truth.lse.abs().clamp(min=1.0)
        own = float(((truth.same_lse - truth.lse).abs() / size).max())
        off = float(((lse.double() - truth.lse).abs() / size).max())
        self.gate("log-sum-exp (twice gate A)", off, 2 * max(limit, 1.5 * own + FLOOR), where)


def relative(x: Tensor, truth: Tensor) -> float:
    """Relative L2 error."""
    return float((x - truth).norm() / truth.norm().clamp(min=1e-30))


def finite(x: Tensor, name: str, where: object) -> None:
    """Gate D: raise `Failed` for NaN or infinity."""
    wrong = int((~torch.isfinite(x)).sum())
    if wrong:
        raise Failed(
            f"gate D: {wrong} of {x.numel()} values of {name} are not finite; {where}", observed=wrong, limit=0
        )
