"""Storing and moving a token's entries in the two planes of a layer, as Triton kernels; storing rotated ones, too.

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
def _encoded(x, scales, head, there, dtype: tl.constexpr, STEP: tl.constexpr, LARGEST: tl.constexpr):
    """Elements of KV heads `head` as they are stored: divided by their scale, saturated where LARGEST is not 0."""
    if scales is not None:
        x = tl.div_rn(x.to(tl.float32), tl.load(scales + head * STEP, mask=there, other=1.0))
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
    key = _encoded(key, k_scales, i // K_SIZE, i < K_WIDTH, k_plane.dtype.element_ty, K_STEP, LARGEST)
    value = _encoded(value, v_scales, j // V_SIZE, j < V_WIDTH, v_plane.dtype.element_ty, V_STEP, LARGEST)
    tl.store(k_plane + page * k_page + place * K_WIDTH + i, key, mask=i < K_WIDTH)
    tl.store(v_plane + page * v_page + place * V_WIDTH + j, value, mask=j < V_WIDTH)


@triton.jit
def _turned(x, weight, cos, sin, eps, i, mask, NORM: tl.constexpr, HALF: tl.constexpr):
    """Both halves, in float32, of what of a token's heads is rotated; normed first where NORM.

    `x` points to the first halves [heads, HALF], `cos` and `sin` to the token's; `i` [1, HALF] counts, all are padded.
    """
    there = i < HALF
    first = tl.load(x, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first + second * second, 1, keep_dims=True)
        scale = 1.0 / tl.sqrt_rn(squares / (2 * HALF) + eps)
        first *= scale * tl.load(weight + i, mask=there, other=0.0).to(tl.float32)
        second *= scale * tl.load(weight + HALF + i, mask=there, other=0.0).to(tl.float32)
    cos_1 = tl.load(cos + i, mask=there, other=0.0).to(tl.float32)
    cos_2 = tl.load(cos + HALF + i, mask=there, other=0.0).to(tl.float32)
    sin_1 = tl.load(sin + i, mask=there, other=0.0).to(tl.float32)
    sin_2 = tl.load(sin + HALF + i, mask=there, other=0.0).to(tl.float32)
    return first * cos_1 + second * sin_1, second * cos_2 + first * sin_2


@triton.jit
def _turn_queries(
    q, weight, cos, sin, eps, q_head, heads,
    NORM: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """A token's query heads, in place."""
    i, head = tl.arange(0, HALF_PAD)[None, :], tl.arange(0, PAD)[:, None]
    mask = (head < heads) & (i < HALF)
    at = q + head * q_head + i
    first, second = _turned(at, weight, cos, sin, eps, i, mask, NORM, HALF)
    tl.store(at, first.to(q.dtype.element_ty), mask=mask)
    tl.store(at + HALF, second.to(q.dtype.element_ty), mask=mask)


@triton.jit
def _store_turned(
    k, to, weight, cos, sin, eps, scales, k_head, heads,
    STEP: tl.constexpr, LARGEST: tl.constexpr, NORM: tl.constexpr, HEAD: tl.constexpr,
    HALF: tl.constexpr, HALF_PAD: tl.constexpr, REST_PAD: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """A token's keys to their place `to` [heads, HEAD].

    They are rounded to the dtype of k before they are encoded, as if they had been rotated in place and stored then.
    """
    i, head = tl.arange(0, HALF_PAD)[None, :], tl.arange(0, PAD)[:, None]
    there = head < heads
    mask = there & (i < HALF)
    at, to = k + head * k_head, to + head * HEAD
    stored: tl.constexpr = to.dtype.scalar.element_ty
    first, second = _turned(at + i, weight, cos, sin, eps, i, mask, NORM, HALF)
    first = _encoded(first.to(k.dtype.element_ty), scales, head, there, stored, STEP, LARGEST)
    second = _encoded(second.to(k.dtype.element_ty), scales, head, there, stored, STEP, LARGEST)
    tl.store(to + i, first, mask=mask)
    tl.store(to + HALF + i, second, mask=mask)
    if REST_PAD > 0:
        rest = 2 * HALF + tl.arange(0, REST_PAD)[None, :]
        behind = there & (rest < HEAD)
        key = _encoded(tl.load(at + rest, mask=behind), scales, head, there, stored, STEP, LARGEST)
        tl.store(to + rest, key, mask=behind)


@triton.jit
def store_rotated_kernel(
    q, k, v, q_weight, k_weight, cos, sin, eps, k_plane, v_plane, slots, k_scales, v_scales,
    q_token, q_head, k_token, k_head, v_token, q_heads, k_heads, k_page, v_page,
    PAGE: tl.constexpr, V_WIDTH: tl.constexpr, V_PAD: tl.constexpr, V_SIZE: tl.constexpr,
    K_STEP: tl.constexpr, V_STEP: tl.constexpr, LARGEST: tl.constexpr, NORM: tl.constexpr, HEAD: tl.constexpr,
    HALF: tl.constexpr, HALF_PAD: tl.constexpr, REST_PAD: tl.constexpr, Q_PAD: tl.constexpr, K_PAD: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, 2): query heads are rotated in place; KV heads are, on their way to the token's slot."""
    await_previous(EARLY)
    token = tl.program_id(0).to(tl.int64)
    cos += token * (2 * HALF)
    sin += token * (2 * HALF)
    if tl.program_id(1) == 0:
        _turn_queries(q + token * q_token, q_weight, cos, sin, eps, q_head, q_heads, NORM, HALF, HALF_PAD, Q_PAD)
    else:
        slot = tl.load(slots + token).to(tl.int64)
        page, place = slot // PAGE, slot % PAGE
        j = tl.arange(0, V_PAD)
        value = tl.load(v + token * v_token + j, mask=j < V_WIDTH)
        _store_turned(
            k + token * k_token, k_plane + page * k_page + place * k_heads * HEAD, k_weight, cos, sin, eps,
            k_scales, k_head, k_heads, K_STEP, LARGEST, NORM, HEAD, HALF, HALF_PAD, REST_PAD, K_PAD,
        )  # fmt: skip
        value = _encoded(value, v_scales, j // V_SIZE, j < V_WIDTH, v_plane.dtype.element_ty, V_STEP, LARGEST)
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
