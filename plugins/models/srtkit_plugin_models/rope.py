"""Rotary position embedding: frequencies of each kind, and the tables by position.

Everything is float32, as in transformers: at far positions another precision gives other angles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from srtkit_plugin_models.config import RopeConfig, mscale


def rope_tables(rope: RopeConfig, rotary_dim: int, positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, 1, rotary_dim] in the form of the operator "rope": (cos, cos) and (-sin, sin)."""
    frequencies = _FREQUENCIES[rope.kind](_plain(rope.theta, rotary_dim), rope, rotary_dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    scale = _attention_factor(rope.parameters) if rope.kind == "yarn" else 1.0
    cos, sin = (angles.cos() * scale).unsqueeze(1), (angles.sin() * scale).unsqueeze(1)
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def _plain(theta: float, rotary_dim: int) -> Tensor:
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    plain: Tensor = 1.0 / theta**exponents
    return plain


def _unscaled(plain: Tensor, rope: RopeConfig, rotary_dim: int) -> Tensor:
    return plain


def _linear(plain: Tensor, rope: RopeConfig, rotary_dim: int) -> Tensor:
    divided: Tensor = plain / rope.parameters["factor"]
    return divided


def _llama3(plain: Tensor, rope: RopeConfig, rotary_dim: int) -> Tensor:
    """Long wavelengths are divided by the factor, short ones kept, those between blended."""
    given = rope.parameters
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    original = given["original_max_position_embeddings"]
    wavelength = 2 * math.pi / plain
    divided = torch.where(wavelength > original / low, plain / given["factor"], plain)
    kept = (original / wavelength - low) / (high - low)
    blended = (1 - kept) * divided / given["factor"] + kept * divided
    between = (wavelength >= original / high) & (wavelength <= original / low)
    return torch.where(between, blended, divided)


def _yarn(plain: Tensor, rope: RopeConfig, rotary_dim: int) -> Tensor:
    """Dimensions that turn often in the original context are kept, those that turn rarely are divided."""
    given = rope.parameters
    original = given["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        """The dimension that makes so many turns in the original context."""
        return rotary_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(given.get("beta_fast") or 32), dimension(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    steps = torch.arange(rotary_dim // 2, dtype=torch.float32)
    divided = ((steps - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    mixed: Tensor = plain / given["factor"] * divided + plain * (1 - divided)
    return mixed


def _attention_factor(given: Mapping[str, Any]) -> float:
    """What yarn multiplies cos and sin by, so that attention keeps its temperature."""
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])

    if given.get("mscale") and given.get("mscale_all_dim"):
        return mscale(given["factor"], given["mscale"]) / mscale(given["factor"], given["mscale_all_dim"])
    return mscale(given["factor"])


_FREQUENCIES: dict[str, Callable[[Tensor, RopeConfig, int], Tensor]] = {
    "default": _unscaled,
    # Equal to the plain one up to max_position_embeddings, and the plan ends the context there.
    "dynamic": _unscaled,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
