"""Operators of mixtures of experts: their arguments, and what they must make of them, in float64.

Equal logits may be chosen either way, so a choice is judged and not compared. Knows no plugin and no device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srtkit_conformance.check import Failed

Arguments = dict[str, Tensor]
SLACK = 2e-5
"""Share by which a weight may be wrong: an exponent of a few tens, in float32."""
STEEPEST = 1.1
"""The largest slope of silu."""


@dataclass(frozen=True)
class Routed:
    """The softmax of each row in float64, [T, E]; what is asked for of it."""

    likely: Tensor
    per_token: int
    renormalised: bool


def arguments(
    sizes: Mapping[str, int], rows: int, normal: Callable[..., Tensor], rng: np.random.Generator
) -> Arguments:
    """What "experts" takes: x, a choice among the experts, and their weights; the last expert is nobody's."""
    count, k, hidden, size = (sizes[name] for name in ("experts", "per_token", "hidden", "size"))
    likely = torch.from_numpy(rng.random((rows, max(count - 1, k))))
    weights, experts = likely.softmax(-1).topk(k)
    return {
        "x": normal(rows, hidden),
        "weights": weights.float(),
        "experts": experts.int(),
        "gate_up": normal(count, 2 * size, hidden, scale=hidden**-0.5),
        "down": normal(count, hidden, size, scale=size**-0.5),
    }


def routed(given: Arguments, sizes: Mapping[str, int]) -> Routed:
    """What "route" must choose from."""
    likely = torch.softmax(given["logits"].double(), -1)
    return Routed(likely, sizes["per_token"], bool(sizes["renormalised"]))


def spoken(given: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """What "experts" must give, [T, H], the size of what may be rounded to make it, and of what is added up.

    Gate, up, their product, an expert's word and its weight may be rounded, and the sum once for each expert.
    """
    x = given["x"].double()
    value, rounded, summed = (torch.zeros_like(x) for _ in range(3))
    k = given["weights"].shape[1]
    for place in range(k):
        chosen, weight = given["experts"][:, place].long(), given["weights"][:, place, None].double()
        for expert in sorted(set(chosen.tolist())):
            mine = chosen == expert
            gate_up, down = given["gate_up"][expert].double(), given["down"][expert].double()
            (gate, up), (gates, ups) = (
                (x[mine] @ gate_up.T).chunk(2, -1),
                (x[mine].abs() @ gate_up.abs().T).chunk(2, -1),
            )
            act = gate * gate.sigmoid()
            word = (act * up) @ down.T
            size = STEEPEST * (gate * up).abs() + 2 * (act * up).abs()
            sums = STEEPEST * gates * up.abs() + act.abs() * ups + (act * up).abs()
            value[mine] += weight[mine] * word
            rounded[mine] += weight[mine] * (size @ down.abs().T + (2 + k) * word.abs())
            summed[mine] += weight[mine] * (sums @ down.abs().T)
    return value, rounded, summed


def compare(found: object, wanted: Routed, what: str) -> float:
    """The largest error as a share of `SLACK`. Raises `Failed` for another form, a wrong choice or a wrong weight."""
    weights, experts = _form(found, wanted, what)
    count = wanted.likely.shape[1]
    if bool(((experts < 0) | (experts >= count)).any()):
        raise Failed(f"{what} names an expert that there is not", observed=experts.tolist(), limit=count)
    spoilt = wanted.likely.isnan().any(-1)
    if not torch.equal(weights.isnan(), spoilt[:, None].expand_as(weights)):
        raise Failed(f"{what} has NaN in other places", observed=weights.isnan().nonzero().tolist())
    weights, experts, likely = weights[~spoilt], experts[~spoilt], wanted.likely[~spoilt]
    if any(len(set(row)) < wanted.per_token for row in experts.tolist()):
        raise Failed(f"{what} names an expert twice", observed=experts.tolist())
    exact = likely.gather(1, experts)
    least = likely.topk(wanted.per_token).values[:, -1:]
    if bool((exact < least * (1 - SLACK)).any()):
        raise Failed(f"{what} leaves a likelier expert out", observed=experts.tolist())
    if wanted.renormalised:
        exact = exact / exact.sum(-1, keepdim=True)
    shares = (weights - exact).abs() / (SLACK * exact + torch.finfo(torch.float32).tiny)
    worst = float(shares.max()) if shares.numel() else 0.0
    if worst > 1:
        raise Failed(f"{what} gives other weights", observed=f"{worst:.3g} times", limit=1)
    return worst


def _form(found: object, wanted: Routed, what: str) -> tuple[Tensor, Tensor]:
    """Both results on the CPU: weights in float64, experts in int64."""
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(one, Tensor) for one in found)):
        raise Failed(f"{what} is no pair of tensors", observed=type(found).__name__)
    weights, experts = found
    shape = (len(wanted.likely), wanted.per_token)
    right = weights.dtype == torch.float32 and experts.dtype in (torch.int32, torch.int64)
    if not right or weights.shape != shape or experts.shape != shape:
        form = f"{tuple(weights.shape)} {weights.dtype}, {tuple(experts.shape)} {experts.dtype}"
        raise Failed(f"{what} has another form", observed=form, limit=f"{shape} float32, int32 or int64")
    return weights.detach().cpu().double(), experts.detach().cpu().long()
