"""Paged attention as Triton kernels: online softmax over tiles of keys, in parts that are merged by log-sum-exp.

One program serves the query heads of one KV head for some tokens of one row, over one segment of the keys that
these may see. All lengths come from device memory. Addresses are 64-bit from the page on. Knows no steps.
"""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _tanh(x):
    """Taylor where exp would lose digits, else by exp; no library of one vendor."""
    y = x * x
    small = 21844.0 / 6081075 * y - 1382.0 / 155925
    small = (small * y + 62.0 / 2835) * y - 17.0 / 315
    small = ((small * y + 2.0 / 15) * y - 1.0 / 3) * y * x + x
    large = 1.0 - 2.0 / (tl.exp2(tl.abs(x) * (2.0 * LOG2_E)) + 1.0)
    return tl.where(y < 0.16, small, tl.where(x < 0, -large, large))


@triton.jit
def _span(
    context, n_query, query, TILE: tl.constexpr, BLOCK_Q: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr
):
    """Keys [low, high) that queries [query, query + BLOCK_Q) of a row see, and their tiles [first, last)."""
    high = context
    low = 0
    if CAUSAL:
        high = context - n_query + tl.minimum(query + BLOCK_Q, n_query)
    if WINDOW > 0:
        low = tl.maximum(context - n_query + query - WINDOW + 1, 0)
    return low, high, low // TILE, tl.cdiv(high, TILE)


@triton.jit
def _turn(q_tile, k_tile, v_tile, see, scale, soft_cap, largest, total, acc, SOFT_CAP: tl.constexpr):
    """A tile of keys joins the running maximum, sum and output; all base 2."""
    score = tl.dot(q_tile, k_tile, input_precision="ieee") * scale
    if SOFT_CAP:
        score = soft_cap * LOG2_E * _tanh(score / soft_cap)
    score = tl.where(see, score, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(score, 1))
    base = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # a query that has seen nothing yet
    weight = tl.exp2(score - base[:, None])
    keep = tl.exp2(largest - base)
    total = total * keep + tl.sum(weight, 1)
    acc = acc * keep[:, None]
    acc = tl.dot(weight.to(v_tile.dtype), v_tile, acc, input_precision="ieee")
    return new_largest, total, acc


@triton.jit
def _row_of_block(cu_q, block, first_row, rows, BLOCK_Q: tl.constexpr):
    """The row that a block of queries belongs to, and its first block: each row has room for one block more."""
    start = tl.load(cu_q + first_row)
    low = 0
    high = rows
    while high - low > 1:
        middle = (low + high) // 2
        if (tl.load(cu_q + first_row + middle) - start) // BLOCK_Q + middle <= block:
            low = middle
        else:
            high = middle
    return first_row + low, (tl.load(cu_q + first_row + low) - start) // BLOCK_Q + low


@triton.jit(do_not_specialize=["first_row", "rows", "q_len", "table_stride"])
def attend_kernel(
    q, k, v, out, lse, part_out, part_lse, own_lse, skip_of, sinks, cu_q, context_of, table,
    scale, soft_cap, first_row, rows, q_len, table_stride,
    q_token, q_head, out_token, out_head, k_page, k_token, k_head, v_page, v_token, v_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, V_HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr, V_PAD: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, CAUSAL: tl.constexpr, SOFT_CAP: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr, TILE: tl.constexpr, SEGMENTS: tl.constexpr, UNIFORM: tl.constexpr,
    PREFIX: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of queries, KV heads, SEGMENTS) over `rows` rows from `first_row` on.

    UNIFORM: every row has `q_len` queries. `scale` holds log2(e) unless SOFT_CAP. With one segment results go to
    out and lse; else to part_out [token, head, segment, V_HEAD] and part_lse, base 2, [token, head, segment].
    PREFIX: the first skip_of[row] keys are prefix_kernel's; sums of the others go to own_lse [row, head], base 2.
    """
    block, kv_head, segment = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if UNIFORM:
        per_row = tl.cdiv(q_len, BLOCK_Q)
        row = first_row + block // per_row
        query = (block % per_row) * BLOCK_Q
    else:
        row, first_block = _row_of_block(cu_q, block, first_row, rows, BLOCK_Q)
        query = (block - first_block) * BLOCK_Q
    begin = tl.load(cu_q + row)
    n_query = tl.load(cu_q + row + 1) - begin
    if query >= n_query:
        return
    context = tl.load(context_of + row)
    pages = table + row.to(tl.int64) * table_stride
    if PREFIX:  # as if the row began after what it shares, which is whole pages
        skip = tl.load(skip_of + row)
        context -= skip
        pages += skip // PAGE
    low, high, first, last = _span(context, n_query, query, TILE, BLOCK_Q, WINDOW, CAUSAL)
    if SEGMENTS > 1:
        each = tl.cdiv(last - first, SEGMENTS)
        first += segment * each
        last = tl.minimum(first + each, last)
        if first >= last:
            return

    m = tl.arange(0, BLOCK_M)
    within = m // GROUP
    valid = (m < BLOCK_Q * GROUP) & (query + within < n_query)
    token = (begin + query + within).to(tl.int64)
    head = kv_head * GROUP + m % GROUP
    position = context - n_query + query + within
    d = tl.arange(0, HEAD_PAD)
    dv = tl.arange(0, V_PAD)
    q_at = q + token[:, None] * q_token + head[:, None] * q_head + d[None, :]
    q_tile = tl.load(q_at, mask=valid[:, None] & (d < HEAD)[None, :], other=0.0)

    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, V_PAD], tl.float32)
    if SINKS:  # noqa: SIM102 - one is known when compiling; a score without a value, of the first segment
        if segment == 0:
            largest = tl.load(sinks + head, mask=valid, other=0.0) * LOG2_E
            total += 1.0

    k_base = k + kv_head * k_head + d[:, None]
    v_base = v + kv_head * v_head + dv[None, :]
    for tile in tl.range(first, last):
        key = tile * TILE + tl.arange(0, TILE)
        inside = (key >= low) & (key < high)
        if PAGE % TILE == 0:  # one page holds the whole tile
            page = tl.load(pages + tile * TILE // PAGE).to(tl.int64) + tl.zeros([TILE], tl.int64)
        else:
            page = tl.load(pages + key // PAGE, mask=inside, other=0).to(tl.int64)
        k_at = k_base + (page * k_page + (key % PAGE) * k_token)[None, :]
        v_at = v_base + (page * v_page + (key % PAGE) * v_token)[:, None]
        k_tile = tl.load(k_at, mask=inside[None, :] & (d < HEAD)[:, None], other=0.0)
        v_tile = tl.load(v_at, mask=inside[:, None] & (dv < V_HEAD)[None, :], other=0.0)

        see = inside[None, :]
        if CAUSAL:
            see = see & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            see = see & (key[None, :] > position[:, None] - WINDOW)
        largest, total, acc = _turn(q_tile, k_tile, v_tile, see, scale, soft_cap, largest, total, acc, SOFT_CAP)

    total = tl.where(total > 0, total, 1.0)  # else nothing was seen: zeros, and -inf as the largest
    acc = acc / total[:, None]
    sums = largest + tl.log2(total)
    out_mask = valid[:, None] & (dv < V_HEAD)[None, :]
    if SEGMENTS == 1:
        out_at = out + token[:, None] * out_token + head[:, None] * out_head + dv[None, :]
        tl.store(out_at, acc.to(out.dtype.element_ty), mask=out_mask)
        if LSE:
            tl.store(lse + token * HEADS + head, sums * LN_2, mask=valid)
        if PREFIX:  # one query a row: the index by token and head, which is the same, costs registers
            tl.store(own_lse + row * HEADS + kv_head * GROUP + m, sums, mask=valid)
    else:
        part = ((token - tl.load(cu_q + first_row)) * HEADS + head) * SEGMENTS + segment
        tl.store(part_out + part[:, None] * V_HEAD + dv[None, :], acc, mask=out_mask)
        tl.store(part_lse + part, sums, mask=valid)


@triton.jit(do_not_specialize=["table_stride"])
def prefix_kernel(
    q, k, v, part_out, part_lse, header, blocks, rows, table, scale, soft_cap, table_stride,
    q_token, q_head, k_page, k_token, k_head, v_page, v_token, v_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, V_HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr, V_PAD: tl.constexpr, PAGE: tl.constexpr, SOFT_CAP: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE: tl.constexpr, BLOCK_WORDS: tl.constexpr,
):  # fmt: skip
    """Any grid: keys that several rows of one query share, read once for a block of them.

    `header`, `blocks` and `rows` are those of a PrefixTable; a program takes every n-th of the (block, KV head, part)
    there are, so that where nothing is shared it costs little. Every query sees all these keys. Results go to
    part_out [member, head, part, V_HEAD] and part_lse, base 2, [member, head, part].
    """
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, HEAD_PAD)
    dv = tl.arange(0, V_PAD)
    parts = tl.load(header + 1)
    work = tl.load(header) * (HEADS // GROUP) * parts
    for item in tl.range(tl.program_id(0), work, tl.num_programs(0)):
        kv_head = item // parts % (HEADS // GROUP)
        block = blocks + item // (parts * (HEADS // GROUP)) * BLOCK_WORDS
        member = tl.load(block) + m // GROUP
        tokens = tl.load(block + 2)
        tiles = tl.cdiv(tokens, TILE)
        each = tl.cdiv(tiles, parts)
        first = item % parts * each
        last = tl.minimum(first + each, tiles)

        valid = m < tl.load(block + 1) * GROUP
        row = tl.load(rows + member, mask=valid, other=0).to(tl.int64)
        head = kv_head * GROUP + m % GROUP
        q_at = q + row[:, None] * q_token + head[:, None] * q_head + d[None, :]
        q_tile = tl.load(q_at, mask=valid[:, None] & (d < HEAD)[None, :], other=0.0)
        largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, V_PAD], tl.float32)
        pages = table + tl.load(block + 3).to(tl.int64) * table_stride
        k_base = k + kv_head * k_head + d[:, None]
        v_base = v + kv_head * v_head + dv[None, :]
        for tile in tl.range(first, last):
            key = tile * TILE + tl.arange(0, TILE)
            inside = key < tokens
            page = tl.load(pages + key // PAGE, mask=inside, other=0).to(tl.int64)
            k_at = k_base + (page * k_page + (key % PAGE) * k_token)[None, :]
            v_at = v_base + (page * v_page + (key % PAGE) * v_token)[:, None]
            k_tile = tl.load(k_at, mask=inside[None, :] & (d < HEAD)[:, None], other=0.0)
            v_tile = tl.load(v_at, mask=inside[:, None] & (dv < V_HEAD)[None, :], other=0.0)
            see = inside[None, :]
            largest, total, acc = _turn(q_tile, k_tile, v_tile, see, scale, soft_cap, largest, total, acc, SOFT_CAP)

        part = (member.to(tl.int64) * HEADS + head) * parts + item % parts
        valid = valid & (first < last)  # fewer tiles than parts: the last ones are never read
        total = tl.where(total > 0, total, 1.0)
        there = valid[:, None] & (dv < V_HEAD)[None, :]
        tl.store(part_out + part[:, None] * V_HEAD + dv[None, :], acc / total[:, None], mask=there)
        tl.store(part_lse + part, largest + tl.log2(total), mask=valid)


@triton.jit
def _weighed(part_out, part_lse, at, parts, largest, V_HEAD: tl.constexpr, V_PAD: tl.constexpr, CHUNK: tl.constexpr):
    """The sum of `parts` outputs from number `at` on, each with its share."""
    dv = tl.arange(0, V_PAD)
    acc = tl.zeros([V_PAD], tl.float32)
    for start in tl.range(0, parts, CHUNK):
        s = start + tl.arange(0, CHUNK)
        there = s < parts
        share = tl.exp2(tl.load(part_lse + at + s, mask=there, other=float("-inf")) - largest)
        part = part_out + (at + s)[:, None] * V_HEAD + dv[None, :]
        acc += tl.sum(tl.load(part, mask=there[:, None] & (dv < V_HEAD)[None, :], other=0.0) * share[:, None], 0)
    return acc


@triton.jit(do_not_specialize=["first_row", "q_len"])
def merge_kernel(
    out, lse, part_out, part_lse, own_lse, skip_of, cu_q, context_of, first_row, q_len, out_token, out_head,
    HEADS: tl.constexpr, V_HEAD: tl.constexpr, V_PAD: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr,
    LSE: tl.constexpr, BLOCK_Q: tl.constexpr, TILE: tl.constexpr, SEGMENTS: tl.constexpr, PREFIX: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, heads) of rows with `q_len` queries: the parts that attend_kernel wrote become out and lse."""
    index, head = tl.program_id(0), tl.program_id(1)
    row = first_row + index // q_len
    begin = tl.load(cu_q + first_row)
    query = index % q_len // BLOCK_Q * BLOCK_Q
    context = tl.load(context_of + row)
    if PREFIX:
        context -= tl.load(skip_of + row)
    _, _, first, last = _span(context, q_len, query, TILE, BLOCK_Q, WINDOW, CAUSAL)
    each = tl.cdiv(last - first, SEGMENTS)
    parts = tl.cdiv(last - first, each)  # the others wrote nothing

    at = (index.to(tl.int64) * HEADS + head) * SEGMENTS
    every = tl.arange(0, SEGMENTS)
    sums = tl.load(part_lse + at + every, mask=every < parts, other=float("-inf"))
    largest = tl.max(sums, 0)
    total = tl.sum(tl.exp2(sums - largest), 0)
    acc = _weighed(part_out, part_lse, at, parts, largest, V_HEAD, V_PAD, CHUNK)
    dv = tl.arange(0, V_PAD)
    token = (begin + index).to(tl.int64)
    tl.store(out + token * out_token + head * out_head + dv, (acc / total).to(out.dtype.element_ty), mask=dv < V_HEAD)
    if LSE:
        tl.store(lse + token * HEADS + head, (largest + tl.log2(total)) * LN_2)
    if PREFIX:
        tl.store(own_lse + row * HEADS + head, largest + tl.log2(total))


@triton.jit
def join_kernel(
    out, lse, own_lse, part_out, part_lse, header, rows, skip_of, out_token, out_head,
    HEADS: tl.constexpr, V_HEAD: tl.constexpr, V_PAD: tl.constexpr, LSE: tl.constexpr,
    TILE: tl.constexpr, MAX_PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Any grid: what prefix_kernel gave for the members of a PrefixTable joins what they have in out, in its dtype."""
    parts = tl.load(header + 1)
    work = tl.load(header + 2) * HEADS
    every = tl.arange(0, MAX_PARTS)
    dv = tl.arange(0, V_PAD)
    for item in tl.range(tl.program_id(0), work, tl.num_programs(0)):
        member, head = item // HEADS, item % HEADS
        row = tl.load(rows + member).to(tl.int64)
        tiles = tl.cdiv(tl.load(skip_of + row), TILE)
        written = tl.cdiv(tiles, tl.cdiv(tiles, parts))
        at = (member * HEADS + head) * parts  # some 500 members x parts, or as many as there are rows: 31 bits do
        sums = tl.load(part_lse + at + every, mask=every < written, other=float("-inf"))
        own = tl.load(own_lse + row * HEADS + head)
        largest = tl.maximum(own, tl.max(sums, 0))
        share = tl.exp2(own - largest)
        total = share + tl.sum(tl.exp2(sums - largest), 0)
        out_at = out + row * out_token + head * out_head + dv
        acc = tl.load(out_at, mask=dv < V_HEAD, other=0.0).to(tl.float32) * share
        acc += _weighed(part_out, part_lse, at, written, largest, V_HEAD, V_PAD, CHUNK)
        tl.store(out_at, (acc / total).to(out.dtype.element_ty), mask=dv < V_HEAD)
        if LSE:
            tl.store(lse + row * HEADS + head, (largest + tl.log2(total)) * LN_2)


@triton.jit
def store_kernel(
    k, v, k_plane, v_plane, slots, k_stride, v_stride, k_page, v_page,
    PAGE: tl.constexpr, K_WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
):  # fmt: skip
    """Grid (tokens): a token's keys and values of all heads go to its slot. Tokens of a page are dense."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    page, place = (slot // PAGE).to(tl.int64), slot % PAGE
    i, j = tl.arange(0, K_PAD), tl.arange(0, V_PAD)
    keys = tl.load(k + token * k_stride + i, mask=i < K_WIDTH)
    values = tl.load(v + token * v_stride + j, mask=j < V_WIDTH)
    tl.store(k_plane + page * k_page + place * K_WIDTH + i, keys, mask=i < K_WIDTH)
    tl.store(v_plane + page * v_page + place * V_WIDTH + j, values, mask=j < V_WIDTH)


@triton.jit
def move_kernel(plane, source, target, page_stride, PAGE: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr):
    """Grid (moves): the entry at a source slot of one plane goes to its target slot."""
    index = tl.program_id(0)
    come, go = tl.load(source + index).to(tl.int64), tl.load(target + index).to(tl.int64)
    i = tl.arange(0, PAD)
    entry = tl.load(plane + come // PAGE * page_stride + come % PAGE * WIDTH + i, mask=i < WIDTH)
    tl.store(plane + go // PAGE * page_stride + go % PAGE * WIDTH + i, entry, mask=i < WIDTH)
