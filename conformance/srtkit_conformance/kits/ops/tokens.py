"""Operators that begin or end with token ids: their arguments, and which ids they may give, by float64 and integers.

A draw is near the edge between two tokens once in a while: both are right then. Knows no plugin and no device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srtkit_conformance.check import Failed

Arguments = dict[str, Tensor]
SLACK = 1e-4
"""Share of all weights by which a sum may be wrong: float32 exponents of a few tens are."""
BITS = 2**64 - 1
KINDS = (
    # temperature, top_k, top_p, min_p; every other row is greedy
    (0.0, 0, 1.0, 0.0),
    (0.7, 0, 1.0, 0.0),
    (0.0, 3, 0.5, 0.1),
    (1.5, 0, 1.0, 0.05),
    (0.0, 0, 1.0, 0.0),
    (1.0, 4, 1.0, 0.0),
    (0.0, 1, 0.1, 1.0),
    (0.9, 0, 0.8, 0.0),
)
EVERY = tuple(
    (temperature, top_k, top_p, min_p)
    for temperature, top_k, top_p, min_p in (
        *((t, k, p, 0.0) for t in (0.3, 1.0, 4.0) for k, p in ((0, 1.0), (5, 1.0), (0, 0.6), (7, 0.9), (1, 1.0))),
        (1.0, 0, 0.0, 0.0),
        (1.0, 10**6, 1.0, 0.0),
        (1.0, 0, 1.0, 0.2),
        (1.0, 0, 1.0, 1.0),
        (1.0, 9, 0.95, 0.1),
        (0.0, 0, 1.0, 0.0),
    )
)
"""What `ops.sample` asks for."""


@dataclass(frozen=True)
class Chosen:
    """Which ids each row may give: bool [N, V]."""

    allowed: Tensor


def parameters(rows: int, rng: np.random.Generator, kinds: tuple[tuple[float, int, float, float], ...]) -> Arguments:
    """What `sample` takes beside logits, by the names of the schema."""
    temperature, top_k, top_p, min_p = (
        zip(*(kinds[row % len(kinds)] for row in range(rows)), strict=True) if rows else [()] * 4
    )
    return {
        "temperature": torch.tensor(temperature, dtype=torch.float32),
        "top_k": torch.tensor(top_k, dtype=torch.int32),
        "top_p": torch.tensor(top_p, dtype=torch.float32),
        "min_p": torch.tensor(min_p, dtype=torch.float32),
        "seed": torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, rows)),
        "position": torch.from_numpy(rng.integers(0, 2**20, rows)),
    }


def penalties(rows: int, vocab: int, rng: np.random.Generator) -> Arguments:
    """What `penalize` takes beside logits: the rows' slots are some of more, in any order."""
    slots = rows + 3
    return {
        "slot": torch.from_numpy(rng.permutation(slots)[:rows].astype(np.int64)),
        "counts": torch.from_numpy((rng.integers(-2, 4, (slots, vocab))).clip(0).astype(np.int32)),
        "prompted": torch.from_numpy(rng.random((slots, vocab)) < 0.3),
        "repetition": torch.from_numpy(rng.uniform(0.5, 2.0, rows).astype(np.float32)),
        "presence": torch.from_numpy(rng.uniform(-2.0, 2.0, rows).astype(np.float32)),
        "frequency": torch.from_numpy(rng.uniform(-1.0, 1.0, rows).astype(np.float32)),
    }


def uniform(seed: int, position: int) -> float:
    """In [0, 1), by splitmix64 (Steele, Lea, Flood 2014)."""
    x = (seed + (position + 1) * 0x9E3779B97F4A7C15) & BITS
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & BITS
    return float((x ^ (x >> 31)) >> 11) * 2.0**-53


def largest(logits: Tensor) -> Chosen:
    """The first NaN of a row, else the first of its largest."""
    allowed = torch.zeros(logits.shape, dtype=torch.bool)
    for row, values in enumerate(logits.double().tolist()):
        best = next((i for i, value in enumerate(values) if value != value), None)
        allowed[row, values.index(max(values)) if best is None else best] = True
    return Chosen(allowed)


def drawable(given: Arguments) -> Chosen:
    """What `sample` may give. Any id in a row that has NaN."""
    allowed = largest(given["logits"]).allowed
    for row, heat in enumerate(given["temperature"].tolist()):
        logits = given["logits"][row].double()
        if heat > 0:
            filters = tuple(given[name][row].item() for name in ("top_k", "top_p", "min_p"))
            u = uniform(int(given["seed"][row]), int(given["position"][row]))
            either = [_drawn(logits, heat, filters, u, slack) for slack in (-SLACK, SLACK)]
            allowed[row] = either[0] | either[1] | bool(logits.isnan().any())
    return Chosen(allowed)


def _drawn(logits: Tensor, heat: float, filters: tuple[float, ...], u: float, slack: float) -> Tensor:
    """Ids at which the sum may pass u of all, the filters' edges being moved by `slack`: bool [V]."""
    top_k, top_p, min_p = filters
    weight = ((logits - logits.max()) / heat).exp()
    kept = weight >= min_p * (1 + slack)
    order = torch.arange(len(logits))
    if top_k > 0 or top_p < 1:
        order = logits.argsort(descending=True, stable=True)
        ranked = weight[order]
        if top_k > 0:
            ranked[int(top_k) :] = 0
        inside = ranked.cumsum(0) - ranked < top_p * ranked.sum() * (1 + slack)
        inside[0] = True
        kept = kept[order] & inside & (ranked > 0)
        weight = ranked
    weight = torch.where(kept, weight, 0.0)
    after = weight.cumsum(0)
    target, edge = u * after[-1], SLACK * after[-1]
    may = kept & (after > target - edge) & (after - weight <= target + edge)
    return torch.zeros_like(may).index_put_((order,), may)


def compare(found: object, wanted: Chosen, what: str) -> float:
    """0. Raises `Failed` for an id that may not be."""
    if not isinstance(found, Tensor):
        raise Failed(f"{what} is no tensor", observed=type(found).__name__)
    rows, vocab = wanted.allowed.shape
    if found.shape != (rows,) or found.dtype != torch.int32:
        raise Failed(
            f"{what} has another form", observed=f"{tuple(found.shape)} {found.dtype}", limit=f"({rows},) int32"
        )
    for row, token in enumerate(found.tolist()):
        right = wanted.allowed[row].nonzero().flatten().tolist()
        if not 0 <= token < vocab or token not in right:
            raise Failed(f"{what}: row {row} gives another token", observed=token, limit=right[:4])
    return 0.0
