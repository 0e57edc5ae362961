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
"""The weight of the likeliest token: the sum of 2 ** 22 of them is an int64."""
NOTHING = tl.constexpr(30.0)
"""A token whose logit is so many temperatures below the largest weighs 0: exp(-30) is less than 1 / ONE."""
LEAST, LARGEST = tl.constexpr(-0x80000000), tl.constexpr(0x7FFFFFFF)
"""No key, and that of NaN."""
STAGES = tl.constexpr(3)
"""Blocks of logits under way at once where one program reads a row."""
GOLDEN, MIX_1, MIX_2 = (
    tl.constexpr(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # of splitmix64 (Steele, Lea, Flood 2014)


@triton.jit
def _key(x):
    """An int32 that orders as x does, -0.0 being 0.0 and NaN above all."""
    x = x.to(tl.float32)
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x == x, bits ^ ((bits >> 31) & 0x7FFFFFFF), LARGEST)


@triton.jit
def _of_key(key):
    """The float32 whose key this is."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def argmax_part_kernel(logits, keys, ids, row_stride, V, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Grid (rows, PARTS): the key of a part's largest value and its first index, to `keys`, `ids` [rows, PARTS]."""
    _begin(EARLY)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    key = _key(tl.load(logits + row * row_stride + i, mask=i < V, other=-float("inf")))
    best = tl.max(key, 0)
    tl.store(keys + row * PARTS + part, best)
    tl.store(ids + row * PARTS + part, tl.min(tl.where((key == best) & (i < V), i, V), 0))


@triton.jit
def argmax_kernel(keys, ids, out, PARTS: tl.constexpr, PAD: tl.constexpr, EARLY: tl.constexpr):
    """Grid (rows): the first of the parts' largest."""
    _begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, PAD)
    key = tl.load(keys + row * PARTS + i, mask=i < PARTS, other=LEAST)
    token = tl.load(ids + row * PARTS + i, mask=i < PARTS, other=LARGEST)
    tl.store(out + row, tl.min(tl.where(key == tl.max(key, 0), token, LARGEST), 0))


@triton.jit
def penalize_kernel(
    logits, slot, counts, prompted, repetition, presence, frequency, row_stride,
    V: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (rows, blocks of V): logits of tokens that a row's prompt or output has in it, in place."""
    _begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    seen = tl.load(slot + row).to(tl.int64) * V + i
    x = tl.load(logits + row * row_stride + i, mask=i < V, other=0.0).to(tl.float32)
    count = tl.load(counts + seen, mask=i < V, other=0)
    known = (count > 0) | (tl.load(prompted + seen, mask=i < V, other=0) != 0)
    factor = tl.where(known, tl.load(repetition + row), 1.0)
    x = tl.where(x > 0, tl.div_rn(x, factor), x * factor)
    x -= tl.where(count > 0, tl.load(presence + row), 0.0) + tl.load(frequency + row) * count
    tl.store(logits + row * row_stride + i, x.to(logits.dtype.element_ty), mask=i < V)


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
def _above(logits, V: tl.constexpr, bar, top, inverse, BY_COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """How many tokens have a key above `bar`, or what they weigh; the largest key up to it and the smallest above."""
    come = tl.zeros([BLOCK], tl.int32 if BY_COUNT else tl.int64)
    below, over = tl.full([BLOCK], LEAST, tl.int32), tl.full([BLOCK], LARGEST, tl.int32)
    for start in tl.range(0, V, BLOCK, num_stages=STAGES):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + i, mask=i < V, other=-float("inf"))
        key = _key(x)
        above = key > bar
        come += above.to(tl.int32) if BY_COUNT else tl.where(above, _weight(x, top, inverse), 0)
        below = tl.maximum(below, tl.where(above | (i >= V), LEAST, key))
        over = tl.minimum(over, tl.where(above, key, LARGEST))
    return tl.sum(come, 0).to(tl.int64), tl.max(below, 0), tl.min(over, 0)


@triton.jit
def _reach(logits, V: tl.constexpr, target, low, high, top, inverse, BY_COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The key at which tokens in order of rank come to more than `target`, of them or of their weight.

    It is among `low` to `high`, the largest, and `low` where they do not come to it. Also what is above that key.
    Halves the range between two values; its ends are keys of tokens, so that empty stretches cost nothing.
    """
    lower, upper = low, high
    above = tl.full([], 0, tl.int64)
    while lower < upper:
        middle = tl.minimum(_key(0.5 * _of_key(lower) + 0.5 * _of_key(upper)), upper - 1)
        come, below, over = _above(logits, V, tl.maximum(middle, lower), top, inverse, BY_COUNT, BLOCK)
        further = come > target
        lower = tl.where(further, over, lower)
        upper = tl.where(further, upper, below)
        above = tl.where(further, above, come)
    return lower, above


@triton.jit
def _measure(x, i, V: tl.constexpr, key, floor, top, inverse, TIES: tl.constexpr):
    """What `_find` adds up: tokens of one key, or weights of the tokens that weigh `floor` at least."""
    if TIES:
        return ((i < V) & (_key(x) == key)).to(tl.int64)
    weight = _weight(x, top, inverse)
    return tl.where((i < V) & (weight.to(tl.float64) >= floor), weight, 0)


@triton.jit
def _sum(logits, V: tl.constexpr, key, floor, top, inverse, TIES: tl.constexpr, BLOCK: tl.constexpr):
    """What `_measure` gives, of all tokens."""
    come = tl.zeros([BLOCK], tl.int64)
    for start in tl.range(0, V, BLOCK, num_stages=STAGES):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + i, mask=i < V, other=-float("inf"))
        come += _measure(x, i, V, key, floor, top, inverse, TIES)
    return tl.sum(come, 0)


@triton.jit
def _find(logits, V: tl.constexpr, target, key, floor, top, inverse, TIES: tl.constexpr, BLOCK: tl.constexpr):
    """The token at which what `_measure` gives, added in order of ids, comes to more than `target`."""
    before = tl.full([], 0, tl.int64)
    first, left = tl.full([], 0, tl.int32), target
    for start in tl.range(0, V, BLOCK, num_stages=STAGES):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + i, mask=i < V, other=-float("inf"))
        after = before + tl.sum(_measure(x, i, V, key, floor, top, inverse, TIES), 0)
        here = (before <= target) & (target < after)
        first = tl.where(here, start, first)
        left = tl.where(here, target - before, left)
        before = after
    i = first + tl.arange(0, BLOCK)
    x = tl.load(logits + i, mask=i < V, other=-float("inf"))
    come = tl.cumsum(_measure(x, i, V, key, floor, top, inverse, TIES), 0)
    return tl.minimum(first + tl.sum((come <= left).to(tl.int32), 0), V - 1)


@triton.jit
def _largest(logits, V: tl.constexpr, BLOCK: tl.constexpr):
    """The key of the largest, and its first index."""
    best, place = tl.full([BLOCK], LEAST, tl.int32), tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, V, BLOCK, num_stages=STAGES):
        i = start + tl.arange(0, BLOCK)
        key = _key(tl.load(logits + i, mask=i < V, other=-float("inf")))
        better = (i < V) & (key > best)
        best, place = tl.where(better, key, best), tl.where(better, i, place)
    key = tl.max(best, 0)
    return key, tl.min(tl.where(best == key, place, V - 1), 0)


@triton.jit
def _ranked(logits, V: tl.constexpr, key, low, kept, top_k, top_p, u, top, inverse, BLOCK: tl.constexpr):
    """One token of the first in order of rank, which top-k and top-p keep and which weigh at most `kept` together."""
    if top_k > 0:
        bar, above = _reach(logits, V, top_k - 1, low, key, top, inverse, True, BLOCK)
        ties = tl.minimum(top_k - above, _sum(logits, V, bar, 0.0, top, inverse, True, BLOCK))
        weight, _, _ = _above(logits, V, bar, top, inverse, False, BLOCK)
        most = weight + ties * _weight(_of_key(bar), top, inverse)
    else:
        most = _sum(logits, V, key, 0.0, top, inverse, False, BLOCK)
    if top_p < 1:
        target = tl.maximum(tl.ceil(top_p.to(tl.float64) * most.to(tl.float64)).to(tl.int64) - 1, 0)
        bar, above = _reach(logits, V, target, low, key, top, inverse, False, BLOCK)
        each = tl.maximum(_weight(_of_key(bar), top, inverse), 1)
        most = above + ((target - above) // each + 1) * each
    target = _share(u, tl.minimum(kept, most))
    bar, above = _reach(logits, V, target, low, key, top, inverse, False, BLOCK)
    each = tl.maximum(_weight(_of_key(bar), top, inverse), 1)
    return _find(logits, V, (target - above) // each, bar, 0.0, top, inverse, True, BLOCK)


@triton.jit
def _share(u, weight):
    """u of a sum of weights, rounded down."""
    return tl.minimum((u * weight.to(tl.float64)).to(tl.int64), weight - 1)


# One of a row is read: where it stands makes no other program worth the seconds of compiling it.
_OF_A_ROW = ["temperature", "top_k", "top_p", "min_p", "seed", "position", "out"]


@triton.jit(do_not_specialize_on_alignment=_OF_A_ROW)
def sample_kernel(
    logits, temperature, top_k, top_p, min_p, seed, position, out, row_stride,
    V: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (rows): a row's token, by one program; the first largest where its temperature is 0.

    All filters keep the first so many in order of rank, so what these weigh says how many: no set is ever made.
    """
    _begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    key, token = _largest(logits, V, BLOCK)
    heat = tl.load(temperature + row)
    if heat > 0:
        top, inverse = _of_key(key), 1.0 / heat
        low = _key((top - NOTHING * heat).to(logits.dtype.element_ty))
        u = _uniform(tl.load(seed + row), tl.load(position + row).to(tl.int64))
        floor = tl.load(min_p + row).to(tl.float64) * ONE
        kept = _sum(logits, V, key, floor, top, inverse, False, BLOCK)
        k, p = tl.load(top_k + row).to(tl.int64), tl.load(top_p + row)
        if (k > 0) | (p < 1):
            token = _ranked(logits, V, key, low, kept, k, p, u, top, inverse, BLOCK)
        else:
            token = _find(logits, V, _share(u, kept), key, floor, top, inverse, False, BLOCK)
    tl.store(out + row, token)
