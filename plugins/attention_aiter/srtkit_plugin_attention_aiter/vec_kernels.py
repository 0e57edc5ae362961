"""Storing and moving a token's entries in vectorised planes, as a Triton kernel. Knows no steps."""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _places(slots, token, i, HEADS: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, X: tl.constexpr):
    """Where elements `i` [heads * size] of a slot's token stand in the planes of keys and of values."""
    slot = tl.load(slots + token).to(tl.int64)
    place, head, element = slot % PAGE, i // SIZE, i % SIZE
    begin = slot // PAGE * (HEADS * SIZE * PAGE) + head * SIZE * PAGE
    key = begin + element // X * PAGE * X + place * X + element % X
    return key, begin + place // X * SIZE * X + element * X + place % X


@triton.jit
def copy_kernel(
    k, v, source, target, k_plane, v_plane,
    MOVE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, X: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Grid (tokens): entries of token i of k and v, or, to MOVE, at slot source[i] of planes, go to slot target[i]."""
    token = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PAD)
    there = i < HEADS * SIZE
    key, value = _places(target, token, i, HEADS, SIZE, PAGE, X)
    old_key = token * HEADS * SIZE + i
    old_value = old_key
    if MOVE:
        old_key, old_value = _places(source, token, i, HEADS, SIZE, PAGE, X)
    tl.store(k_plane + key, tl.load(k + old_key, mask=there), mask=there)
    tl.store(v_plane + value, tl.load(v + old_value, mask=there), mask=there)
