"""From logits to token ids, as Triton kernels: the largest, a draw, and penalties before both.

Rows are ranked by `_key`, an integer that orders as the logits do. Weights are integers too: sums of them are exact, so
that what is drawn does not depend on the order of adding, nor on any other row. Knows no requests.
"""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from srtkit_plugin_ops_triton.kernels import _begin

ONE = tl.constexpr(float(1 << 40))
"""The weight of the likeliest token. 2 ** 18 of them fit into 64 bits with room to spare."""
NOTHING = tl.constexpr(30.0)
"""A token whose logit is so many temperatures below the largest weighs 0: exp(-30) is less than 1 / ONE."""
GOLDEN, MIX_1, MIX_2 = (
    tl.constexpr(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # of splitmix64 (Steele, Lea, Flood 2014)


@triton.jit
def _key(x, SPARE: tl.constexpr):
    """An int32 that orders as x does, -0.0 being 0.0 and NaN above all. As float32 x has SPARE last bits of zero."""
    x = x.to(tl.float32)
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF) >> SPARE


@triton.jit
def _of_key(key, SPARE: tl.constexpr):
    """The float32 whose key this is."""
    bits = (key << SPARE) ^ ((key >> 31) & 0x7FFFFFFF)
    return (bits >> SPARE << SPARE).to(tl.float32, bitcast=True)


@triton.jit
def argmax_part_kernel(logits, keys, ids, row_stride, V, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Grid (rows, PARTS): the key of a part's largest value and its first index, to `keys`, `ids` [rows, PARTS]."""
    _begin(EARLY)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    key = _key(tl.load(logits + row * row_stride + i, mask=i < V, other=-float("inf")), 0)
    best = tl.max(key, 0)
    tl.store(keys + row * PARTS + part, best)
    tl.store(ids + row * PARTS + part, tl.min(tl.where((key == best) & (i < V), i, V), 0))


@triton.jit
def argmax_kernel(keys, ids, out, PARTS: tl.constexpr, PAD: tl.constexpr, EARLY: tl.constexpr):
    """Grid (rows): the first of the parts' largest."""
    _begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PAD)
    key = tl.load(keys + row * PARTS + i, mask=i < PARTS, other=-0x80000000)
    token = tl.load(ids + row * PARTS + i, mask=i < PARTS, other=0x7FFFFFFF)
    tl.store(out + row, tl.min(tl.where(key == tl.max(key, 0), token, 0x7FFFFFFF), 0))


@triton.jit
def _uniform(seed, position):
    """Float64 in [0, 1): a function of int64 (seed, position) only."""
    x = seed.to(tl.uint64, bitcast=True) + (position + 1).to(tl.uint64, bitcast=True) * GOLDEN
    x = (x ^ (x >> 30)) * MIX_1
    x = (x ^ (x >> 27)) * MIX_2
    x = x ^ (x >> 31)
    return (x >> 11).to(tl.float64) * (1.0 / (1 << 53))


@triton.jit
def _weight(x, top, inverse):
    """What a logit weighs beside the largest, `ONE` being 1: int64."""
    return (tl.exp((x.to(tl.float32) - top) * inverse) * ONE).to(tl.int64)


@triton.jit
def _above(logits, V: tl.constexpr, bar, top, inverse, SPARE: tl.constexpr, BLOCK: tl.constexpr):
    """How many tokens have a key above `bar`, and what they weigh."""
    count = tl.zeros([BLOCK], tl.int32)
    weight = tl.zeros([BLOCK], tl.int64)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + i, mask=i < V, other=-float("inf"))
        inside = (i < V) & (_key(x, SPARE) > bar)
        count += inside.to(tl.int32)
        weight += tl.where(inside, _weight(x, top, inverse), 0)
    return tl.sum(count, 0).to(tl.int64), tl.sum(weight, 0)


@triton.jit
def _reach(
    logits,
    V: tl.constexpr,
    target,
    low,
    high,
    top,
    inverse,
    BY_COUNT: tl.constexpr,
    SPARE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The key at which the tokens in order of rank come to more than `target`, of them or of their weight.

    It is among `low` to `high`, and `low` where all do not come to it. Also the number and weight of tokens above it.
    """
    lower, upper = low.to(tl.int64), high.to(tl.int64)
    while lower < upper:
        middle = (lower + upper) >> 1
        count, weight = _above(logits, V, middle.to(tl.int32), top, inverse, SPARE, BLOCK)
        come = count if BY_COUNT else weight
        lower = tl.where(come > target, middle + 1, lower)
        upper = tl.where(come > target, upper, middle)
    key = lower.to(tl.int32)
    count, weight = _above(logits, V, key, top, inverse, SPARE, BLOCK)
    return key, count, weight


@triton.jit
def _measure(x, i, V: tl.constexpr, key, floor, top, inverse, TIES: tl.constexpr, SPARE: tl.constexpr):
    """What `_find` adds up: tokens of one key, or weights of the tokens that weigh `floor` at least."""
    if TIES:
        return ((i < V) & (_key(x, SPARE) == key)).to(tl.int64)
    weight = _weight(x, top, inverse)
    return tl.where((i < V) & (weight.to(tl.float64) >= floor), weight, 0)


@triton.jit
def _find(logits, V, target, key, floor, top, inverse, TIES: tl.constexpr, SPARE: tl.constexpr, BLOCK: tl.constexpr):
    """The token at which what `_measure` gives, added in order of ids, comes to more than `target`."""
    before = tl.full([], 0, tl.int64)
    first, left = tl.full([], 0, tl.int32), target
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + i, mask=i < V, other=-float("inf"))
        after = before + tl.sum(_measure(x, i, V, key, floor, top, inverse, TIES, SPARE), 0)
        here = (before <= target) & (target < after)
        first = tl.where(here, start, first)
        left = tl.where(here, target - before, left)
        before = after
    i = first + tl.arange(0, BLOCK)
    x = tl.load(logits + i, mask=i < V, other=-float("inf"))
    come = tl.cumsum(_measure(x, i, V, key, floor, top, inverse, TIES, SPARE), 0)
    return tl.minimum(first + tl.sum((come <= left).to(tl.int32), 0), V - 1)


@triton.jit
def _largest(logits, V: tl.constexpr, SPARE: tl.constexpr, BLOCK: tl.constexpr):
    """The key of the largest, and its first index."""
    best = tl.full([BLOCK], -0x80000000, tl.int32)
    where = tl.zeros([BLOCK], tl.int32)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        key = _key(tl.load(logits + i, mask=i < V, other=-float("inf")), SPARE)
        better = (i < V) & (key > best)
        best, where = tl.where(better, key, best), tl.where(better, i, where)
    key = tl.max(best, 0)
    return key, tl.min(tl.where(best == key, where, V - 1), 0)


@triton.jit
def _draw(
    logits, V: tl.constexpr, key, temperature, top_k, top_p, min_p, u,
    SPARE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token. All filters keep the first so many in order of rank: only what these weigh counts."""
    top, inverse = _of_key(key, SPARE), 1.0 / temperature
    floor = min_p.to(tl.float64) * ONE
    lowest = _key((top - NOTHING * temperature).to(logits.dtype.element_ty), SPARE)
    kept = tl.full([BLOCK], 0, tl.int64)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + i, mask=i < V, other=-float("inf"))
        kept += _measure(x, i, V, key, floor, top, inverse, False, SPARE)
    total = tl.sum(kept, 0)
    if (top_k > 0) | (top_p < 1):
        most = tl.full([], 0, tl.int64)
        if top_k > 0:
            bar, count, weight = _reach(
                logits, V, top_k.to(tl.int64) - 1, lowest, key, top, inverse, True, SPARE, BLOCK
            )
            at_least, _ = _above(logits, V, bar - 1, top, inverse, SPARE, BLOCK)
            more = tl.minimum(top_k.to(tl.int64), at_least) - count
            most = weight + more * _weight(_of_key(bar, SPARE), top, inverse)
        else:
            _, most = _above(logits, V, lowest - 1, top, inverse, SPARE, BLOCK)
        if top_p < 1:
            share = tl.ceil(top_p.to(tl.float64) * most.to(tl.float64)).to(tl.int64)
            target = tl.maximum(share - 1, 0)
            bar, count, weight = _reach(logits, V, target, lowest, key, top, inverse, False, SPARE, BLOCK)
            each = tl.maximum(_weight(_of_key(bar, SPARE), top, inverse), 1)
            most = weight + ((target - weight) // each + 1) * each
        total = tl.minimum(total, most)
        target = tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)
        bar, count, weight = _reach(logits, V, target, lowest, key, top, inverse, False, SPARE, BLOCK)
        each = tl.maximum(_weight(_of_key(bar, SPARE), top, inverse), 1)
        token = _find(logits, V, (target - weight) // each, bar, floor, top, inverse, True, SPARE, BLOCK)
    else:
        target = tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)
        token = _find(logits, V, target, key, floor, top, inverse, False, SPARE, BLOCK)
    return token


@triton.jit
def sample_kernel(
    logits, temperature, top_k, top_p, min_p, seed, position, out, row_stride,
    V: tl.constexpr, SPARE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (rows): a row's token, by one program; the first largest where its temperature is 0."""
    _begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    key, token = _largest(logits, V, SPARE, BLOCK)
    heat = tl.load(temperature + row)
    if heat > 0:
        u = _uniform(tl.load(seed + row), tl.load(position + row))
        token = _draw(
            logits, V, key, heat, tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row), u, SPARE, BLOCK
        )
    tl.store(out + row, token)
