"""How near is near enough: gates relative to what a plain computation in the same dtype gives. Knows no step.

A: relative L2 error of the whole. B: largest error. C: relative L2 error of each row, which finds one bad
row among many. D: nothing but finite numbers. And log-sum-exp at twice gate A.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from srtkit.spec.layers import DTYPES
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.threads import one_thread

FLOOR = 1e-6
"""Relative; twice to five times the error of float32 itself, so that the order of a sum does not matter."""
LARGEST_OF = {"float32": 6.0}
"""Times the plain computation's largest error, else 3: here the order of sums decides two nearly equal scores."""
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

    @cached_property
    def plain(self) -> Errors:
        """Errors of the plain computation."""
        return Errors.of(self.same.double(), self)

    @cached_property
    def plain_lse(self) -> float:
        """The largest error of the plain computation's lse."""
        return lse_error(self.same_lse, self.lse)

    @cached_property
    def squares(self) -> tuple[float, list[float], float]:
        """Of `out`: the sum of squares of all, of each row, and the largest value."""
        total, rows = _sums(self.out, self.rows)
        return total, rows, float(self.out.abs().max())


@dataclass(frozen=True)
class Errors:
    """Relative L2 errors of the whole and of each row, and the largest error."""

    whole: float
    rows: Sequence[float]
    largest: float

    @staticmethod
    def of(out: Tensor, truth: Truth) -> Errors:
        """Of out float64 [n, heads, dv]."""
        off = out - truth.out
        total, rows = _sums(off, truth.rows)
        size, sizes, _ = truth.squares
        each = [_ratio(mine, its) for mine, its in zip(rows, sizes, strict=True)]
        return Errors(_ratio(total, size), each, float(off.abs().max()))


def _sums(x: Tensor, rows: Sequence[slice]) -> tuple[float, list[float]]:
    """Sums of squares of all and of each row of tokens."""
    tokens = x.square().flatten(1).sum(1).numpy()
    return float(tokens.sum()), [float(tokens[row].sum()) for row in rows]


def _ratio(squares: float, size: float) -> float:
    return math.sqrt(squares / max(size, 1e-60))


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
        plain, errors = truth.plain, Errors.of(out, truth)
        self.gate("gate A (relative L2 error)", errors.whole, 1.5 * plain.whole + FLOOR, where)
        self.gate("ceiling of the dtype", errors.whole, CEILINGS.get(dtype, CEILING), where)
        limit = LARGEST_OF.get(dtype, 3.0) * plain.largest + FLOOR * truth.squares[2]
        self.gate("gate B (largest error)", errors.largest, limit, where)
        for number, (error, plain_error) in enumerate(zip(errors.rows, plain.rows, strict=True)):
            allowed = 4 * max(plain.whole, plain_error) + FLOOR
            self.gate("gate C (relative L2 error of a row)", error, allowed, f"row {number} of {where}")
        if lse is not None:
            typical = max(
                plain.whole, torch.finfo(DTYPES[dtype]).eps / 4
            )  # one visible token: out is exact, lse is not
            self._judge_lse(truth, lse, 1.5 * typical + FLOOR, where)

    def _judge_lse(self, truth: Truth, lse: Tensor, limit: float, where: object) -> None:
        """An error in lse multiplies a part's weight in a merge, so it is held to the limit of out, as an absolute."""
        finite(lse, "lse", where)
        off = lse_error(lse.double(), truth.lse)
        self.gate("log-sum-exp (twice gate A)", off, 2 * max(limit, 1.5 * truth.plain_lse + FLOOR), where)


def relative(x: Tensor, truth: Tensor) -> float:
    """Relative L2 error."""
    return float((x - truth).norm() / truth.norm().clamp(min=1e-30))


def lse_error(x: Tensor, truth: Tensor) -> float:
    """The largest error, relative where the truth is above 1."""
    return float(((x - truth).abs() / truth.abs().clamp(min=1.0)).max())


def finite(x: Tensor, name: str, where: object) -> None:
    """Gate D: raise `Failed` for NaN or infinity."""
    wrong = int((~torch.isfinite(x)).sum())
    if wrong:
        raise Failed(
            f"gate D: {wrong} of {x.numel()} values of {name} are not finite; {where}", observed=wrong, limit=0
        )
