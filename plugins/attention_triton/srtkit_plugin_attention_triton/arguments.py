"""Arguments that launches of several kernels have in common."""

from __future__ import annotations

from math import log
from typing import Any

import triton  # type: ignore[import-untyped]
from torch import Tensor

from srtkit.spec.attention import AttentionSpec, LayerHandle

LOG2_E = 1 / log(2)


def sizes(spec: AttentionSpec) -> dict[str, Any]:
    """Sizes of a layer group as constants of a kernel."""
    return {
        "HEADS": spec.q_heads,
        "GROUP": spec.q_heads // spec.kv_heads,
        "HEAD": spec.head_dim,
        "HEAD_PAD": padded(spec.head_dim),
        "V_HEAD": spec.v_head_dim,
        "V_PAD": padded(spec.v_head_dim),
        "SOFT_CAP": spec.soft_cap > 0,
    }


def scale_of(spec: AttentionSpec) -> float:
    """Of scores; their base is 2 unless they are capped first."""
    return spec.scale if spec.soft_cap else spec.scale * LOG2_E


def planes(layer: LayerHandle) -> tuple[Tensor, Tensor]:
    """Keys and values."""
    return layer.planes["k"], layer.planes["v"]


def strides(layer: LayerHandle) -> tuple[int, ...]:
    """Page, token and head of both planes."""
    k, v = planes(layer)
    return *k.stride()[:3], *v.stride()[:3]


def padded(size: int) -> int:
    """A size that a matrix unit takes."""
    return int(max(16, triton.next_power_of_2(size)))
