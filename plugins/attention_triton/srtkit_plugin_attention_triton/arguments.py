"""Arguments that launches of several kernels have in common."""

from __future__ import annotations

from math import log
from typing import Any

import triton  # type: ignore[import-untyped]

from srtkit.spec.attention import AttentionSpec, LayerHandle
from srtkit_plugin_attention_triton.slots import planes_of, scales_of, step_of

LOG2_E = 1 / log(2)
MAX_GROUP = 64
"""Query heads of one program."""


def group_of(spec: AttentionSpec) -> int:
    """Query heads of one program: all of a KV head, or as large an equal part of them as a program takes."""
    ratio = spec.q_heads // spec.kv_heads
    return next(size for size in range(min(ratio, MAX_GROUP), 0, -1) if ratio % size == 0)


def sizes(spec: AttentionSpec) -> dict[str, Any]:
    """Sizes of a layer group as constants of a kernel. The key of a latent layer is the rope part beside the value."""
    head = spec.head_dim if spec.mla is None else spec.mla.rope
    group = group_of(spec)
    return {
        "HEADS": spec.q_heads,
        "GROUP": group,
        "SPLIT": spec.q_heads // spec.kv_heads // group,
        "HEAD": head,
        "HEAD_PAD": padded(head),
        "V_HEAD": spec.v_head_dim,
        "V_PAD": padded(spec.v_head_dim),
        "LATENT": spec.mla is not None,
        "SOFT_CAP": spec.soft_cap > 0,
    }


def scale_of(spec: AttentionSpec) -> float:
    """Of scores; their base is 2 unless they are capped first."""
    return spec.scale if spec.soft_cap else spec.scale * LOG2_E


def steps(layer: LayerHandle) -> dict[str, int]:
    """From one KV head's scale of stored entries to the next, as constants of a kernel."""
    k, v = scales_of(layer)
    return {"K_STEP": step_of(k), "V_STEP": step_of(v)}


def strides(layer: LayerHandle) -> tuple[int, ...]:
    """Page, token and head of both planes; entries of a latent layer are one head's."""
    of_both = [plane.stride() if plane.dim() == 4 else (*plane.stride()[:2], 0) for plane in planes_of(layer)]
    return *of_both[0][:3], *of_both[1][:3]


def padded(size: int) -> int:
    """A size that a matrix unit takes."""
    return int(max(16, triton.next_power_of_2(size)))
