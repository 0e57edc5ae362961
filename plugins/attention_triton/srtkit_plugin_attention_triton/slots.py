"""A token's entries in the two planes of a layer, by slot: stored, rotated and stored, moved, in one launch each.

Knows the layouts `nhd/1` (k and v) and `latent/1` (rope part and latent), and fp8 planes with their scales; no steps.
Other plugins that have these layouts use it too.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from srtkit.spec.attention import LayerHandle, Rotation, SlotMover
from srtkit_plugin_attention_triton.slot_kernels import move_kernel, store_kernel, store_rotated_kernel
from srtkit_plugin_attention_triton.tiles import ALONE, Launch

Pair = tuple[Tensor, Tensor]


def planes_of(layer: LayerHandle) -> Pair:
    """Keys and values; of a latent layer the rope part, which is a key only, and the latent, which is both."""
    planes = layer.planes
    return (planes["rope"], planes["latent"]) if "latent" in planes else (planes["k"], planes["v"])


def scales_of(layer: LayerHandle) -> tuple[Tensor | None, Tensor | None]:
    """What stored entries of both planes are multiplied by, float32 [1] or [kv_heads]: a latent layer has one for both.

    None for planes that are not fp8, and for a layer without scales.
    """
    scales = layer.scales
    if scales is None or planes_of(layer)[0].dtype.itemsize > 1:
        return None, None
    return scales.get("k"), scales.get("k" if "latent" in layer.planes else "v")


def store(layer: LayerHandle, slots: Tensor, new: Pair, launch: Launch = ALONE) -> None:
    """Write a step's entries [T, *entry], as `AttentionBackend.store` has them, at int32 `slots` [T]. Recordable.

    fp8 planes get value / scale, rounded to the nearest and saturated.
    """
    first, second = new if "k" in layer.planes else new[::-1]
    k, v = _dense_token(first), _dense_token(second)
    if k.shape[0] == 0:
        return
    k_plane, v_plane = planes_of(layer)
    k_scales, v_scales = scales_of(layer)
    store_kernel[(k.shape[0],)](
        *(k, v, k_plane, v_plane, slots, k_scales, v_scales),
        *(k.stride(0), v.stride(0), k_plane.stride(0), v_plane.stride(0)),
        K_SIZE=k.shape[-1],
        V_SIZE=v.shape[-1],
        K_STEP=step_of(k_scales),
        V_STEP=step_of(v_scales),
        LARGEST=_largest(k_plane),
        **_widths(k_plane, v_plane),
        **launch,
    )


def store_rotated(
    layer: LayerHandle,
    slots: Tensor,
    qkv: tuple[Tensor, Tensor, Tensor],
    rotation: Rotation,
    launch: Launch = ALONE,
) -> None:
    """As `RotatedStore.store_rotated` has it, of planes `nhd/1`, at int32 `slots` [T]. k stays. Recordable."""
    (q, k, v), (cos, sin, norms) = qkv, rotation
    if k.shape[0] == 0:
        return
    assert q.stride(2) == k.stride(2) == 1, "heads are dense"
    v, half, rest = _dense_token(v), cos.shape[-1] // 2, k.shape[2] - cos.shape[-1]
    q_weight, k_weight, eps = norms or (None, None, 0.0)
    (k_plane, v_plane), (k_scales, v_scales) = planes_of(layer), scales_of(layer)
    widths = _widths(k_plane, v_plane)
    store_rotated_kernel[(k.shape[0], 2)](
        *(q, k, v, q_weight, k_weight, cos.contiguous(), sin.contiguous(), eps, k_plane, v_plane, slots),
        *(k_scales, v_scales, q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), q.shape[1], k.shape[1]),
        *(k_plane.stride(0), v_plane.stride(0)),
        V_SIZE=v.shape[2],
        K_STEP=step_of(k_scales),
        V_STEP=step_of(v_scales),
        LARGEST=_largest(k_plane),
        NORM=norms is not None,
        HEAD=k.shape[2],
        HALF=half,
        HALF_PAD=triton.next_power_of_2(half),
        REST_PAD=triton.next_power_of_2(rest) if rest else 0,
        Q_PAD=triton.next_power_of_2(q.shape[1]),
        K_PAD=triton.next_power_of_2(k.shape[1]),
        **{name: widths[name] for name in ("PAGE", "V_WIDTH", "V_PAD")},
        **launch,
    )


def step_of(scales: Tensor | None) -> int:
    """From one KV head's scale to the next: 1, or 0 if they share one."""
    return int(scales is not None and scales.numel() > 1)


class PlaneMover(SlotMover):
    """Moves stored tokens."""

    def move_slots(self, layer: LayerHandle, source: Tensor, target: Tensor) -> None:
        """Copy the entries at int32 `source` [n] to `target` [n], both planes, bit by bit."""
        if len(source) == 0:
            return
        k, v = planes_of(layer)
        move_kernel[(len(source),)](k, v, source, target, k.stride(0), v.stride(0), **_widths(k, v))


def _widths(k_plane: Tensor, v_plane: Tensor) -> dict[str, Any]:
    """Of a page and of a token's entries, as the kernels want them."""
    k, v = k_plane.shape[2:].numel(), v_plane.shape[2:].numel()
    return {
        "PAGE": k_plane.shape[1],
        "K_WIDTH": k,
        "V_WIDTH": v,
        "K_PAD": triton.next_power_of_2(k),
        "V_PAD": triton.next_power_of_2(v),
    }


def _largest(plane: Tensor) -> float:
    """Where stored values are saturated; 0 for planes that are not fp8."""
    return torch.finfo(plane.dtype).max if plane.dtype.itemsize == 1 else 0.0


def _dense_token(x: Tensor) -> Tensor:
    """x [T, *entry] with dense tokens; they may be strided among each other."""
    return x if x.stride(-1) == 1 and (x.dim() == 2 or x.stride(1) == x.shape[2]) else x.contiguous()
