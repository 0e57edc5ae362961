"""Random arguments of an operator, and what it must make of them: formulas in float64, and how near is near enough.

An operator computes in float32 at least and rounds to its dtype; the bound allows a few roundings of each. Knows no
plugin and no device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.layers import DTYPES
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.ops import routing, tokens
from srtkit_conformance.kits.ops.cases import Case
from srtkit_conformance.kits.threads import one_thread

ROUNDINGS = 2.1
"""Times that a result may be rounded to the dtype, and a hair: silu before the product, a norm before its weight."""
INSIDE = 64
"""Roundings of float32 in the work inside, sums and functions together."""
HEADS = (3, 2)
"""Query and key heads of a rotation."""
VOCAB = 50
"""Rows of an embedding."""
EPS = 1e-5

Arguments = dict[str, Tensor]
"""By the names of the schema. A linear's weight and bias stand beside its input; without "bias" it has none."""


@dataclass(frozen=True)
class Expected:
    """Float64 on the CPU: the result, the size of what was rounded to make it, and of what was added up."""

    value: Tensor
    rounded: Tensor
    summed: Tensor


@one_thread()
def draw(case: Case, rows: int, rng: np.random.Generator, gain: float = 1.0) -> Arguments:
    """Arguments for `rows` tokens, on the CPU. `gain` is the standard deviation of what flows through."""

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape) * scale).to(DTYPES[case.dtype])

    sizes = case.sizes
    match case.op:
        case "rms_norm":
            return {"x": normal(rows, sizes["hidden"], scale=gain), "weight": normal(sizes["hidden"])}
        case "add_rms_norm":
            x, residual = (normal(rows, sizes["hidden"], scale=gain) for _ in range(2))
            return {"x": x, "residual": residual, "weight": normal(sizes["hidden"])}
        case "silu_mul":
            return {"gate_up": normal(rows, 2 * sizes["hidden"], scale=gain)}
        case "rope" | "norm_rope":
            size = sizes["head_dim"]
            q, k = (normal(rows, heads, size, scale=gain) for heads in HEADS)
            angles = torch.from_numpy(rng.uniform(0, 2 * np.pi, (rows, 1, sizes.get("rotary", size) // 2)))
            cos, sin = angles.cos(), angles.sin()
            tables = (torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
            weights = {"q_weight": normal(size), "k_weight": normal(size)} if case.op == "norm_rope" else {}
            return {"q": q, "k": k, **weights, "cos": tables[0].to(q.dtype), "sin": tables[1].to(q.dtype)}
        case "embed":
            ids = torch.from_numpy(rng.integers(0, VOCAB, rows, dtype=np.int32))
            return {"ids": ids, "weight": normal(VOCAB, sizes["hidden"], scale=gain)}
        case "penalize":
            return {"logits": normal(rows, sizes["vocab"], scale=gain)} | tokens.penalties(rows, sizes["vocab"], rng)
        case "argmax":
            return {"logits": normal(rows, sizes["vocab"], scale=gain)}
        case "sample":
            return {"logits": normal(rows, sizes["vocab"], scale=gain)} | tokens.parameters(rows, rng, tokens.KINDS)
        case "linear":
            weight = normal(sizes["out"], sizes["in"], scale=sizes["in"] ** -0.5)
            return {"x": normal(rows, sizes["in"], scale=gain), "weight": weight, "bias": normal(sizes["out"])}
        case "route":
            return {"logits": normal(rows, sizes["experts"], scale=gain)}
        case "experts":
            return routing.arguments(sizes, rows, normal, rng)
    raise AssertionError(f"{case.op} is not drawn")


@one_thread()
def expected(case: Case, given: Arguments, eps: float = EPS) -> dict[str, Any]:
    """Results by name, "out" or the arguments that it mutates: `Expected`, `tokens.Chosen` or `routing.Routed`."""
    if case.op == "route":
        return {"out": routing.routed(given, case.sizes)}
    return _FORMULAS[case.op](given, eps)


def _rms_norm(given: Arguments, eps: float) -> dict[str, Expected]:
    return {"out": _normed(given["x"].double(), given["weight"], eps)}


def _add_rms_norm(given: Arguments, eps: float) -> dict[str, Expected]:
    x, residual = given["x"].double(), given["residual"].double()
    total, size = x + residual, x.abs() + residual.abs()
    kept = total.to(given["x"].dtype).double()  # the norm is that of the residual as it is kept
    return {"out": _normed(kept, given["weight"], eps), "residual": Expected(total, total.abs(), size)}


def _normed(x: Tensor, weight: Tensor, eps: float) -> Expected:
    length = (x.pow(2).sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt()
    value = x / length * weight.double()
    return Expected(value, value.abs(), value.abs())


def _silu_mul(given: Arguments, eps: float) -> dict[str, Expected]:
    both = given["gate_up"].double()
    half = both.shape[-1] // 2
    gate, up = both[:, :half], both[:, half:]
    value = gate / (1 + torch.exp(-gate)) * up
    return {"out": Expected(value, value.abs(), value.abs())}


def _rope(given: Arguments, eps: float) -> dict[str, Expected]:
    return {name: _rotated(given[name].double(), given["cos"], given["sin"]) for name in ("q", "k")}


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Expected:
    """Dimensions i and i + R / 2 are the coordinates of a point that is turned; what is behind R stays."""
    half = cos.shape[-1] // 2
    c, s = cos.double()[..., :half], sin.double()[..., half:]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    value = torch.cat((first * c - second * s, second * c + first * s, rest), -1)
    size = torch.cat(((first * c).abs() + (second * s).abs(), (second * c).abs() + (first * s).abs(), 0 * rest), -1)
    return Expected(value, size, size)


def _norm_rope(given: Arguments, eps: float) -> dict[str, Expected]:
    """Norm and rotation may each round as they do alone."""
    normed = {name: _normed(given[name].double(), given[f"{name}_weight"], eps).value for name in ("q", "k")}
    turned = _rope(given | normed, eps)
    return {name: Expected(one.value, 2 * one.rounded, one.summed) for name, one in turned.items()}


def _embed(given: Arguments, eps: float) -> dict[str, Expected]:
    """Bit by bit."""
    value = given["weight"].double()[given["ids"].long()]
    return {"out": Expected(value, 0 * value, 0 * value)}


def _penalize(given: Arguments, eps: float) -> dict[str, Expected]:
    x, count = given["logits"].double(), given["counts"][given["slot"]].double()
    repetition, presence, frequency = (
        given[name].double()[:, None] for name in ("repetition", "presence", "frequency")
    )
    known = (count > 0) | given["prompted"][given["slot"]]
    scaled = torch.where(known, torch.where(x > 0, x / repetition, x * repetition), x)
    less = torch.where(count > 0, presence, 0.0) + frequency * count
    return {"logits": Expected(scaled - less, (scaled - less).abs(), scaled.abs() + less.abs())}


def _linear(given: Arguments, eps: float) -> dict[str, Expected]:
    x, weight = given["x"].double(), given["weight"].double()
    product, size = x @ weight.T, x.abs() @ weight.abs().T
    bias = given["bias"].double() if "bias" in given else torch.zeros(len(weight), dtype=torch.float64)
    return {"out": Expected(product + bias, product.abs() + bias.abs(), size + bias.abs())}


_FORMULAS: dict[str, Callable[[Arguments, float], dict[str, Any]]] = {
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "silu_mul": _silu_mul,
    "rope": _rope,
    "norm_rope": _norm_rope,
    "embed": _embed,
    "penalize": _penalize,
    "argmax": lambda given, eps: {"out": tokens.largest(given["logits"])},
    "sample": lambda given, eps: {"out": tokens.drawable(given)},
    "linear": _linear,
    "experts": lambda given, eps: {"out": Expected(*routing.spoken(given))},
}


@one_thread()
def compare(found: object, wanted: Expected | tokens.Chosen | routing.Routed, dtype: str, what: str) -> float:
    """The largest error as a share of what is allowed. Raises `Failed` above 1, for NaN in other places, for ids."""
    if isinstance(wanted, tokens.Chosen):
        return tokens.compare(found, wanted, what)
    if isinstance(wanted, routing.Routed):
        return routing.compare(found, wanted, what)
    if not isinstance(found, Tensor):
        raise Failed(f"{what} is no tensor", observed=type(found).__name__)
    if found.shape != wanted.value.shape or found.dtype != DTYPES[dtype]:
        form = f"{tuple(found.shape)} {found.dtype}"
        raise Failed(f"{what} has another form", observed=form, limit=f"{tuple(wanted.value.shape)} {DTYPES[dtype]}")
    exact = found.detach().cpu().double()
    if not torch.equal(exact.isnan(), wanted.value.isnan()):
        raise Failed(f"{what} has NaN in other places", observed=_places(exact), limit=_places(wanted.value))
    info = torch.finfo(DTYPES[dtype])
    allowed = ROUNDINGS * info.eps / 2 * wanted.rounded + INSIDE * 2.0**-24 * wanted.summed + info.tiny
    shares = ((exact - wanted.value).abs() / allowed).nan_to_num(nan=0.0, posinf=float("inf"))
    worst = float(shares.max()) if shares.numel() else 0.0
    if worst > 1:
        raise Failed(f"{what} is farther from float64 than rounding explains", observed=f"{worst:.3g} times", limit=1)
    return worst


def _places(x: Tensor) -> str:
    return f"{int(x.isnan().sum())} of {x.numel()}"
