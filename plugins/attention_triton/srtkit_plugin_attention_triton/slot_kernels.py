"""Storing and moving a token's entries in the two planes of a layer, as Triton kernels.

Planes are [pages, page tokens, *entry] with dense pages. Addresses are 64-bit from the page on. Knows no steps.
"""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def await_previous(EARLY: tl.constexpr):
    """Let the next kernel come and wait for the one before, where they are launched early: see `tiles.launch_of`."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def _encoded(x, scales, i, there, dtype: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr, LARGEST: tl.constexpr):
    """Elements `i` of a token as they are stored: divided by their scale, saturated where LARGEST is not 0."""
    if scales is not None:
        x = tl.div_rn(x.to(tl.float32), tl.load(scales + i // SIZE * STEP, mask=there, other=1.0))
    if LARGEST > 0:
        x = tl.clamp(x.to(tl.float32), -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return x.to(dtype)


@triton.jit
def store_kernel(
    k, v, k_plane, v_plane, slots, k_scales, v_scales, k_token, v_token, k_page, v_page,
    PAGE: tl.constexpr, K_WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
    K_SIZE: tl.constexpr, V_SIZE: tl.constexpr, K_STEP: tl.constexpr, V_STEP: tl.constexpr, LARGEST: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (tokens): K_WIDTH and V_WIDTH elements of a token go to its slot in both planes.

    Each K_SIZE elements have a scale of their own where K_STEP is 1, and all have the first where it is 0; likewise v.
    """
    await_previous(EARLY)
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    page, place = slot // PAGE, slot % PAGE
    i, j = tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    key = tl.load(k + token * k_token + i, mask=i < K_WIDTH)
    value = tl.load(v + token * v_token + j, mask=j < V_WIDTH)
    key = _encoded(key, k_scales, i, i < K_WIDTH, k_plane.dtype.element_ty, K_SIZE, K_STEP, LARGEST)
    value = _encoded(value, v_scales, j, j < V_WIDTH, v_plane.dtype.element_ty, V_SIZE, V_STEP, LARGEST)
    tl.store(k_plane + page * k_page + place * K_WIDTH + i, key, mask=i < K_WIDTH)
    tl.store(v_plane + page * v_page + place * V_WIDTH + j, value, mask=j < V_WIDTH)


@triton.jit
def move_kernel(
    k_plane, v_plane, source, target, k_page, v_page,
    PAGE: tl.constexpr, K_WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
):  # fmt: skip
    """Grid (moves): what stands at a source slot of both planes goes to its target slot."""
    move = tl.program_id(0)
    come, go = tl.load(source + move).to(tl.int64), tl.load(target + move).to(tl.int64)
    i, j = tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    key = tl.load(k_plane + come // PAGE * k_page + come % PAGE * K_WIDTH + i, mask=i < K_WIDTH)
    value = tl.load(v_plane + come // PAGE * v_page + come % PAGE * V_WIDTH + j, mask=j < V_WIDTH)
    tl.store(k_plane + go // PAGE * k_page + go % PAGE * K_WIDTH + i, key, mask=i < K_WIDTH)
    tl.store(v_plane + go // PAGE * v_page + go % PAGE * V_WIDTH + j, value, mask=j < V_WIDTH)
