"""Small Triton kernels around the operator: page tables of its calls, drafts of trees, shared prefixes. No steps."""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["width", "table_row", "out_row"])
def visible_kernel(
    table, out, cu_q, context_of, width, table_row, out_row,
    WINDOW: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, blocks of columns): a copy of `table` with page 0 for pages wholly before every query's window."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n_query = tl.load(cu_q + row + 1) - tl.load(cu_q + row)
    first = tl.maximum(tl.load(context_of + row) - n_query - WINDOW + 1, 0) // PAGE
    page = tl.load(table + row.to(tl.int64) * table_row + column, mask=(column < width) & (column >= first), other=0)
    tl.store(out + row.to(tl.int64) * out_row + column, page, mask=column < width)


@triton.jit
def _dot(a, b, UPCAST: tl.constexpr):
    """a times b, in float32 where told: the interpreter computes wrongly in bfloat16."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b)


@triton.jit(do_not_specialize=["q_len", "table_row"])
def tree_kernel(
    q, k, v, out, prefix_lse, lse, bits, positions, context_of, table, scale, cap, q_len, table_row,
    q_token, q_head, k_page, k_token, k_head, v_page, v_token, v_head, out_token, out_head, lse_token, lse_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, HEAD_PAD: tl.constexpr, V_HEAD: tl.constexpr,
    V_PAD: tl.constexpr, LATENT: tl.constexpr, SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, WORDS: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_M: tl.constexpr, TILE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Grid (rows, KV heads, blocks of a row's query vectors): what drafts see of each other joins `out`.

    `out` has what they see of the tokens stored before, and `prefix_lse`, at its strides, the log-sums of that. With a
    window there is neither, and its tokens are read here too: it goes by a draft's position, which the operator does
    not know. `lse` [tokens, HEADS] is of both. The query of a latent layer is the part for the latent, then the rest.
    """
    row, kv_head = tl.program_id(0), tl.program_id(1)
    context = tl.load(context_of + row)
    stored = context - q_len
    vector = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    here = vector < q_len * GROUP
    query, head = vector // GROUP, kv_head * GROUP + vector % GROUP
    token = (row * q_len + query).to(tl.int64)
    i, j, m = tl.arange(0, HEAD_PAD), tl.arange(0, V_PAD), tl.arange(0, TILE)
    own = q + token * q_token + head * q_head
    if LATENT:
        latent = tl.load(own[:, None] + j[None, :], mask=here[:, None] & (j < V_HEAD)[None, :], other=0.0)
        own += V_HEAD
    mine = tl.load(own[:, None] + i[None, :], mask=here[:, None] & (i < HEAD)[None, :], other=0.0)
    first = stored
    if WINDOW > 0:
        first = tl.maximum(stored - WINDOW + 1, 0)
        place = tl.load(positions + token, mask=here, other=0)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, V_PAD], tl.float32)
    for start in range(first, context, TILE):
        key = start + m
        there = key < context
        page = tl.load(table + row.to(tl.int64) * table_row + key // PAGE, mask=there, other=0).to(tl.int64)
        k_at = k + page * k_page + key % PAGE * k_token + kv_head * k_head
        v_at = v + page * v_page + key % PAGE * v_token + kv_head * v_head
        keys = tl.load(k_at[None, :] + i[:, None], mask=there[None, :] & (i < HEAD)[:, None], other=0.0)
        values = tl.load(v_at[:, None] + j[None, :], mask=there[:, None] & (j < V_HEAD)[None, :], other=0.0)
        score = _dot(mine, keys, UPCAST)
        if LATENT:
            score += _dot(latent, tl.trans(values), UPCAST)
        score *= scale
        if SOFT_CAP:
            score = cap * (1 - 2 / (tl.exp(2 * score / cap) + 1))
        draft = tl.maximum(key - stored, 0)
        word = token[:, None] * WORDS + draft[None, :] // 32
        new = (key >= stored)[None, :]
        known = tl.load(bits + word, mask=here[:, None] & there[None, :] & new, other=-1)
        see = there[None, :] & (((known >> (draft % 32)[None, :]) & 1) != 0)
        if WINDOW > 0:
            other = tl.load(positions + row * q_len + draft, mask=there & (key >= stored), other=0)
            see = see & (place[:, None] - tl.where(key >= stored, other, key)[None, :] < WINDOW)
        score = tl.where(see, score, float("-inf"))
        highest = tl.maximum(top, tl.max(score, 1))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        weight = tl.exp(score - base[:, None])
        fade = tl.exp(top - base)
        total = total * fade + tl.sum(weight, 1)
        sums = sums * fade[:, None] + _dot(weight.to(values.dtype), values, UPCAST)
        top = highest
    whole = top + tl.log(total)
    out_at = out + token[:, None] * out_token + head[:, None] * out_head + j[None, :]
    there = here[:, None] & (j < V_HEAD)[None, :]
    if prefix_lse is not None:
        before = tl.load(
            prefix_lse + token * lse_token + head * lse_head, mask=here & (stored > 0), other=float("-inf")
        )
        both = tl.maximum(whole, before)
        both += tl.log(tl.exp(whole - both) + tl.exp(before - both))
        seen = tl.load(out_at, mask=there & (stored > 0), other=0.0).to(tl.float32)
        result = sums * tl.exp(top - both)[:, None] + seen * tl.exp(before - both)[:, None]
        whole = both
    else:
        result = sums / total[:, None]
    tl.store(out_at, result.to(out.dtype.element_ty), mask=there)
    tl.store(lse + token * HEADS + head, whole, mask=here)


@triton.jit(do_not_specialize=["table_row", "out_row"])
def shared_kernel(
    header, blocks, skip, table, context_of, cu_q, length, shared_table, own_length, own_table, table_row, out_row,
    GROUPS: tl.constexpr, WORDS: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (GROUPS + rows, blocks of columns): lengths and pages of what each group shares, and of each row's own.

    The table of a group is that of its first row; that of a row's own begins behind the pages that it shares. `cu_q`
    [GROUPS + 1] are a group's places among all members. Groups that there are none of have no queries and no keys.
    """
    number = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if number < GROUPS:
        there = number < tl.load(header)
        block = blocks + number * WORDS
        place, n = tl.load(block, mask=there, other=0), tl.load(block + 1, mask=there, other=0)
        tokens, row = tl.load(block + 2, mask=there, other=0), tl.load(block + 3, mask=there, other=0)
        end = tl.where(there, place + n, tl.load(header + 2))
        if tl.program_id(1) == 0:
            tl.store(length + number, tokens)
            tl.store(cu_q + number + 1, end)
            if number == 0:
                tl.store(cu_q, 0)
        seen = (column < tokens // PAGE) & (column < WIDTH)
        page = tl.load(table + row.to(tl.int64) * table_row + column, mask=seen, other=0)
        tl.store(shared_table + number.to(tl.int64) * out_row + column, page, mask=column < WIDTH)
    else:
        row = number - GROUPS
        tokens = tl.load(skip + row)
        first = tokens // PAGE
        if tl.program_id(1) == 0:
            tl.store(own_length + row, tl.load(context_of + row) - tokens)
        page = tl.load(table + row.to(tl.int64) * table_row + first + column, mask=first + column < WIDTH, other=0)
        tl.store(own_table + row.to(tl.int64) * out_row + column, page, mask=column < WIDTH)


@triton.jit(do_not_specialize=["q_token", "q_head"])
def gather_kernel(
    q, header, order, out, q_token, q_head, HEADS: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr
):  # fmt: skip
    """Grid (rows, heads): the queries of groups' members, one group after the other."""
    member, head, i = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, PAD)
    if member < tl.load(header + 2):
        row = tl.load(order + member).to(tl.int64)
        query = tl.load(q + row * q_token + head * q_head + i, mask=i < SIZE)
        tl.store(out + (member * HEADS + head) * SIZE + i, query, mask=i < SIZE)


@triton.jit(do_not_specialize=["out_token", "out_head", "lse_token", "lse_head", "other_token", "other_head"])
def join_kernel(
    out, lse, other, other_lse, header, order, out_token, out_head, lse_token, lse_head, other_token, other_head,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads): what members have of their group, in `other` and `other_lse`, joins what they have alone."""
    member, head, i = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, PAD)
    if member < tl.load(header + 2):
        row = tl.load(order + member).to(tl.int64)
        lse_at = lse + row * lse_token + head * lse_head
        mine, theirs = tl.load(lse_at), tl.load(other_lse + member * other_token + head * other_head)
        both = tl.maximum(mine, theirs)
        both += tl.log(tl.exp(mine - both) + tl.exp(theirs - both))
        at = out + row * out_token + head * out_head + i
        own = tl.load(at, mask=i < SIZE).to(tl.float32)
        shared = tl.load(other + (member * HEADS + head) * SIZE + i, mask=i < SIZE).to(tl.float32)
        result = own * tl.exp(mine - both) + shared * tl.exp(theirs - both)
        tl.store(at, result.to(out.dtype.element_ty), mask=i < SIZE)
        tl.store(lse_at, both)
