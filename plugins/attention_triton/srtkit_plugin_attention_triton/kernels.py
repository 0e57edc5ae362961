"""Paged attention as Triton kernels: online softmax over tiles of keys, in parts that are merged by log-sum-exp.

One program serves some query heads of one KV head for some tokens of one row, over one segment of the keys that
these may see. All lengths come from device memory. Addresses are 64-bit from the page on. Knows no steps.
"""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from srtkit_plugin_attention_triton.slot_kernels import await_previous

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
    context, n_query, query,
    TILE: tl.constexpr, BLOCK_Q: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    """Keys [low, high) that queries [query, query + BLOCK_Q) of a row see, and their tiles [first, last).

    In a tree any draft may see any other, and may stand where the first one does.
    """
    high = context
    low = 0
    if CAUSAL and not TREE:
        high = context - n_query + tl.minimum(query + BLOCK_Q, n_query)
    if WINDOW > 0:
        oldest = context - n_query - WINDOW + 1
        if not TREE:
            oldest += query
        low = tl.maximum(oldest, 0)
    return low, high, low // TILE, tl.cdiv(high, TILE)


@triton.jit
def _latent_scores(latent_q, v_tile, score, PIECE: tl.constexpr):
    """Scores of values that are keys, on top of `score`. Long sums in float32 are made in pieces, which lose less."""
    queries: tl.constexpr = latent_q.shape[0]
    keys: tl.constexpr = v_tile.shape[0]
    pieces: tl.constexpr = latent_q.shape[1] // PIECE
    if latent_q.dtype == tl.float32 and pieces > 1:
        left = tl.permute(tl.reshape(latent_q, [queries, pieces, PIECE]), [1, 0, 2])
        right = tl.permute(tl.reshape(v_tile, [keys, pieces, PIECE]), [1, 2, 0])
        score += tl.sum(tl.dot(left, right, input_precision="ieee"), 0)
    else:
        score = tl.dot(latent_q, tl.trans(v_tile), score, input_precision="ieee")
    return score


@triton.jit
def _turn(
    q_tile, latent_q, k_tile, v_tile, see, scale, soft_cap, largest, total, acc,
    LATENT: tl.constexpr, SOFT_CAP: tl.constexpr,
):  # fmt: skip
    """A tile of keys joins the running maximum, sum and output; all base 2. LATENT: values are keys too."""
    k_tile, v_tile = k_tile.to(q_tile.dtype), v_tile.to(q_tile.dtype)  # of fp8
    score = tl.dot(q_tile, k_tile, input_precision="ieee")
    if LATENT:
        score = _latent_scores(latent_q, v_tile, score, PIECE=64)
    score = score * scale
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
def _started(sinks, head, valid, segment, BLOCK_M: tl.constexpr, SINKS: tl.constexpr):
    """The running maximum and sum before any key: the first segment has the sink, a score without a value."""
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if SINKS:  # noqa: SIM102 - one is known when compiling
        if segment == 0:
            largest = tl.load(sinks + head, mask=valid, other=0.0) * LOG2_E
            total += 1.0
    return largest, total


@triton.jit
def _scaled(acc, v_scales, kv_head, V_STEP: tl.constexpr):
    """Sums of values as they are stored become sums of values."""
    if v_scales is not None:
        acc = acc * tl.load(v_scales + kv_head * V_STEP)
    return acc


@triton.jit
def _finished(acc, total, largest):
    """The output, and its log-sum of base 2; zeros and -inf if nothing was seen."""
    total = tl.where(total > 0, total, 1.0)
    return acc / total[:, None], largest + tl.log2(total)


@triton.jit
def _queries(q_at, valid, d, dv, HEAD: tl.constexpr, V_HEAD: tl.constexpr, LATENT: tl.constexpr):
    """Query vectors that meet keys, and those that meet values that are keys too: they stand before the others."""
    q_tile = tl.load(q_at + (V_HEAD * LATENT + d)[None, :], mask=valid[:, None] & (d < HEAD)[None, :], other=0.0)
    latent_q = q_tile
    if LATENT:
        latent_q = tl.load(q_at + dv[None, :], mask=valid[:, None] & (dv < V_HEAD)[None, :], other=0.0)
    return q_tile, latent_q


@triton.jit
def _page_of(pages, tile, key, inside, TILE: tl.constexpr, PAGE: tl.constexpr):
    """The page of each key of a tile; one that holds the whole tile is looked up once."""
    if PAGE % TILE == 0:
        page = tl.load(pages + tile * TILE // PAGE).to(tl.int64) + tl.zeros([TILE], tl.int64)
    else:
        page = tl.load(pages + key // PAGE, mask=inside, other=0).to(tl.int64)
    return page


@triton.jit
def _loaded(
    k_base, v_base, page, key, inside, d, dv, k_page, k_token, v_page, v_token,
    HEAD: tl.constexpr, V_HEAD: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Tiles of keys [HEAD_PAD, TILE] and values [TILE, V_PAD], as they are stored, of `key`s in their `page`s."""
    k_at = k_base + (page * k_page + (key % PAGE) * k_token)[None, :]
    v_at = v_base + (page * v_page + (key % PAGE) * v_token)[:, None]
    k_tile = tl.load(k_at, mask=inside[None, :] & (d < HEAD)[:, None], other=0.0)
    v_tile = tl.load(v_at, mask=inside[:, None] & (dv < V_HEAD)[None, :], other=0.0)
    return k_tile, v_tile


@triton.jit
def _drafts(words, valid, WORDS: tl.constexpr):
    """The bits of up to 64 drafts that queries see, from the first of a query's words on."""
    low = tl.load(words, mask=valid, other=0).to(tl.int64) & 0xFFFFFFFF
    if WORDS == 1:
        return low
    return low | (tl.load(words + 1, mask=valid, other=0).to(tl.int64) << 32)


@triton.jit
def _in_order(key, inside, position, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Which keys queries at these positions see."""
    see = inside[None, :]
    if CAUSAL:
        see = see & (key[None, :] <= position[:, None])
    if WINDOW > 0:
        see = see & (key[None, :] > position[:, None] - WINDOW)
    return see


@triton.jit
def _in_tree(drafts, key, draft, inside, positions, position, WINDOW: tl.constexpr):
    """Which keys are seen: what stands before the drafts, that is `draft` < 0, and the drafts that bits name.

    A window counts by `positions` of drafts, which are their depth, and `position` of queries.
    """
    bit = drafts[:, None] >> tl.minimum(tl.maximum(draft, 0), 63).to(tl.int64)[None, :] & 1
    see = inside[None, :] & ((draft < 0)[None, :] | (bit != 0))
    if WINDOW > 0:
        place = tl.load(positions + draft, mask=inside & (draft >= 0), other=0)
        see = see & (tl.where(draft < 0, key, place)[None, :] > position[:, None] - WINDOW)
    return see


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


@triton.jit
def _own_work(
    cu_q, first_row, rows, q_len, GROUPS: tl.constexpr, BLOCK_Q: tl.constexpr, UNIFORM: tl.constexpr
):  # fmt: skip
    """This program's row, the first of its queries in it, and its group of heads.

    Groups of a block of queries follow each other: what they read lies side by side. Blocks with most keys come first,
    that none is left alone at the end: of rows of one query the step sees to that, of others the last block has most.
    """
    block, group = tl.program_id(0) // GROUPS, tl.program_id(0) % GROUPS
    if UNIFORM:
        per_row = tl.cdiv(q_len, BLOCK_Q)
        row = first_row + block // per_row
        query = (block % per_row) * BLOCK_Q
    else:
        block = tl.num_programs(0) // GROUPS - 1 - block
        row, first_block = _row_of_block(cu_q, block, first_row, rows, BLOCK_Q)
        query = (block - first_block) * BLOCK_Q
    return row, query, group


@triton.jit
def _in_prefix(header, member_of, row, skip, head, HEADS: tl.constexpr, TILE: tl.constexpr):
    """What prefix_kernel gave for heads of a row that shares `skip` > 0 keys: the numbers of the first parts, and how
    many there are. Fewer of its tiles, of TILE keys, than parts: the last ones were never written."""
    parts = tl.load(header + 1)
    tiles = tl.cdiv(skip, TILE)
    at = (tl.load(member_of + row) * HEADS + head) * parts  # some 500 members x parts, or as many as rows: 31 bits do
    return at, tl.cdiv(tiles, tl.cdiv(tiles, parts))


@triton.jit
def _joined(
    prefix_out, prefix_lse, at, parts, valid, largest, total, acc, V_HEAD: tl.constexpr, V_PAD: tl.constexpr
):  # fmt: skip
    """`parts` results of each query vector, from number `at` on, join its running maximum, sum and output."""
    dv = tl.arange(0, V_PAD)
    there = valid[:, None] & (dv < V_HEAD)[None, :]
    for part in tl.range(0, parts, num_stages=1):
        sums = tl.load(prefix_lse + at + part, mask=valid, other=0.0)
        values = tl.load(prefix_out + (at + part)[:, None] * V_HEAD + dv[None, :], mask=there, other=0.0)
        new_largest = tl.maximum(largest, sums)
        share, keep = tl.exp2(sums - new_largest), tl.exp2(largest - new_largest)
        total = total * keep + share
        acc = acc * keep[:, None] + values * share[:, None]
        largest = new_largest
    return largest, total, acc


@triton.jit(do_not_specialize=["first_row", "rows", "q_len", "table_stride"])
def attend_kernel(
    q, k, v, out, lse, part_out, part_lse, prefix_out, prefix_lse, header, skip_of, member_of,
    sinks, k_scales, v_scales, tree, positions, cu_q, context_of, table, scale, soft_cap, first_row, rows, q_len,
    table_stride, q_token, q_head, out_token, out_head, k_page, k_token, k_head, v_page, v_token, v_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SPLIT: tl.constexpr, HEAD: tl.constexpr, V_HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr, V_PAD: tl.constexpr, PAGE: tl.constexpr, LATENT: tl.constexpr,
    K_STEP: tl.constexpr, V_STEP: tl.constexpr, TREE_WORDS: tl.constexpr,
    WINDOW: tl.constexpr, CAUSAL: tl.constexpr, SOFT_CAP: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr, TILE: tl.constexpr, SEGMENTS: tl.constexpr, UNIFORM: tl.constexpr,
    MIXED: tl.constexpr, PREFIX: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of queries x groups of heads, SEGMENTS) over `rows` rows from `first_row` on: see _own_work.

    A group is the GROUP query heads of a KV head, or of SPLIT parts of them one. LATENT: q holds the part that meets v,
    which is the value and most of the key, before the part that meets k. `scale` holds log2(e) unless SOFT_CAP.
    UNIFORM: every row has `q_len` queries. MIXED: rows of one query are for such a launch, others for one that is not.
    With one segment results go to out and lse; else to part_out [query, head, segment, V_HEAD] and part_lse, base 2,
    [query, head, segment], queries numbered as if all rows had `q_len`.
    PREFIX, its tile: prefix_kernel had the first skip_of[row] keys; what it gave joins here, or in merge_kernel.
    TREE_WORDS: `tree` [token, TREE_WORDS] has a bit for each draft of the row that the token sees.
    """
    await_previous(EARLY)
    row, query, group = _own_work(cu_q, first_row, rows, q_len, HEADS // GROUP, BLOCK_Q, UNIFORM)
    kv_head, segment = group // SPLIT, tl.program_id(1)
    begin = tl.load(cu_q + row)
    n_query = tl.load(cu_q + row + 1) - begin
    nothing = query >= n_query
    if MIXED:
        nothing |= (n_query == 1) != UNIFORM
    if nothing:
        return
    context = tl.load(context_of + row)
    pages = table + row.to(tl.int64) * table_stride
    if PREFIX:  # as if the row began after what it shares, which is whole pages
        skip = tl.load(skip_of + row)
        context -= skip
        pages += skip // PAGE
    low, high, first, last = _span(context, n_query, query, TILE, BLOCK_Q, WINDOW, CAUSAL, TREE_WORDS > 0)
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
    head = group * GROUP + m % GROUP
    position = context - n_query + query + within
    d, dv = tl.arange(0, HEAD_PAD), tl.arange(0, V_PAD)
    q_at = q + token[:, None] * q_token + head[:, None] * q_head
    q_tile, latent_q = _queries(q_at, valid, d, dv, HEAD, V_HEAD, LATENT)
    if k_scales is not None:
        scale *= tl.load(k_scales + kv_head * K_STEP)
    if TREE_WORDS > 0:
        drafts = _drafts(tree + token * TREE_WORDS, valid, TREE_WORDS)
        if WINDOW > 0:
            position = tl.load(positions + token, mask=valid, other=0)

    largest, total = _started(sinks, head, valid, segment, BLOCK_M, SINKS)
    acc = tl.zeros([BLOCK_M, V_PAD], tl.float32)

    k_base = k + kv_head * k_head + d[:, None]
    v_base = v + kv_head * v_head + dv[None, :]
    for tile in tl.range(first, last):
        key = tile * TILE + tl.arange(0, TILE)
        inside = (key >= low) & (key < high)
        page = _page_of(pages, tile, key, inside, TILE, PAGE)
        k_tile, v_tile = _loaded(
            k_base, v_base, page, key, inside, d, dv, k_page, k_token, v_page, v_token, HEAD, V_HEAD, PAGE
        )
        if TREE_WORDS > 0:
            see = _in_tree(drafts, key, key - (context - n_query), inside, positions + begin, position, WINDOW)
        else:
            see = _in_order(key, inside, position, CAUSAL, WINDOW)
        largest, total, acc = _turn(
            q_tile, latent_q, k_tile, v_tile, see, scale, soft_cap, largest, total, acc, LATENT, SOFT_CAP
        )

    acc = _scaled(acc, v_scales, kv_head, V_STEP)
    if PREFIX and SEGMENTS == 1:  # noqa: SIM102 - one is known when compiling
        if skip > 0:
            at, parts = _in_prefix(header, member_of, row, skip, group * GROUP + m, HEADS, PREFIX)
            largest, total, acc = _joined(prefix_out, prefix_lse, at, parts, valid, largest, total, acc, V_HEAD, V_PAD)
    acc, sums = _finished(acc, total, largest)
    out_mask = valid[:, None] & (dv < V_HEAD)[None, :]
    if SEGMENTS == 1:
        out_at = out + token[:, None] * out_token + head[:, None] * out_head + dv[None, :]
        tl.store(out_at, acc.to(out.dtype.element_ty), mask=out_mask)
        if LSE:
            tl.store(lse + token * HEADS + head, sums * LN_2, mask=valid)
    else:
        place = token - tl.load(cu_q + first_row)
        if MIXED:
            place = row.to(tl.int64) + tl.zeros([BLOCK_M], tl.int64)
        part = (place * HEADS + head) * SEGMENTS + segment
        tl.store(part_out + part[:, None] * V_HEAD + dv[None, :], acc, mask=out_mask)
        tl.store(part_lse + part, sums, mask=valid)


@triton.jit(do_not_specialize=["table_stride"])
def prefix_kernel(
    q, k, v, part_out, part_lse, k_scales, v_scales, header, blocks, rows, table, scale, soft_cap, table_stride,
    q_token, q_head, k_page, k_token, k_head, v_page, v_token, v_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SPLIT: tl.constexpr, HEAD: tl.constexpr, V_HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr, V_PAD: tl.constexpr, PAGE: tl.constexpr, LATENT: tl.constexpr,
    K_STEP: tl.constexpr, V_STEP: tl.constexpr, SOFT_CAP: tl.constexpr,
    BLOCK_M: tl.constexpr, TILE: tl.constexpr, BLOCK_WORDS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Any grid: keys that several rows of one query share, read once for a block of them.

    `header`, `blocks` and `rows` are those of a PrefixTable; a program takes every n-th of the (block, group of heads,
    part) there are, so that where nothing is shared it costs little. Every query sees all these keys. Results go to
    part_out [member, head, part, V_HEAD] and part_lse, base 2, [member, head, part].
    """
    await_previous(EARLY)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, HEAD_PAD)
    dv = tl.arange(0, V_PAD)
    parts = tl.load(header + 1)
    work = tl.load(header) * (HEADS // GROUP) * parts
    for item in tl.range(tl.program_id(0), work, tl.num_programs(0)):
        group = item // parts % (HEADS // GROUP)
        kv_head = group // SPLIT
        block = blocks + item // (parts * (HEADS // GROUP)) * BLOCK_WORDS
        member = tl.load(block) + m // GROUP
        tokens = tl.load(block + 2)
        tiles = tl.cdiv(tokens, TILE)
        each = tl.cdiv(tiles, parts)
        first = item % parts * each
        last = tl.minimum(first + each, tiles)

        valid = m < tl.load(block + 1) * GROUP
        row = tl.load(rows + member, mask=valid, other=0).to(tl.int64)
        head = group * GROUP + m % GROUP
        q_at = q + row[:, None] * q_token + head[:, None] * q_head
        q_tile, latent_q = _queries(q_at, valid, d, dv, HEAD, V_HEAD, LATENT)
        of_keys = scale
        if k_scales is not None:
            of_keys *= tl.load(k_scales + kv_head * K_STEP)
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
            k_tile, v_tile = _loaded(
                k_base, v_base, page, key, inside, d, dv, k_page, k_token, v_page, v_token, HEAD, V_HEAD, PAGE
            )
            see = inside[None, :]
            largest, total, acc = _turn(
                q_tile, latent_q, k_tile, v_tile, see, of_keys, soft_cap, largest, total, acc, LATENT, SOFT_CAP
            )

        part = (member.to(tl.int64) * HEADS + head) * parts + item % parts
        valid = valid & (first < last)  # fewer tiles than parts: the last ones are never read
        acc, sums = _finished(_scaled(acc, v_scales, kv_head, V_STEP), total, largest)
        there = valid[:, None] & (dv < V_HEAD)[None, :]
        tl.store(part_out + part[:, None] * V_HEAD + dv[None, :], acc, mask=there)
        tl.store(part_lse + part, sums, mask=valid)


@triton.jit
def _merged(
    part_out, part_lse, at, parts, largest, total, acc,
    V_HEAD: tl.constexpr, V_PAD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """`parts` results of one query head, from number `at` on, join its running maximum, sum and output [V_PAD]."""
    dv = tl.arange(0, V_PAD)
    for start in tl.range(0, parts, CHUNK):
        s = start + tl.arange(0, CHUNK)
        there = s < parts
        sums = tl.load(part_lse + at + s, mask=there, other=float("-inf"))
        part = part_out + (at + s)[:, None] * V_HEAD + dv[None, :]
        values = tl.load(part, mask=there[:, None] & (dv < V_HEAD)[None, :], other=0.0)
        new_largest = tl.maximum(largest, tl.max(sums, 0))
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # parts in which the query saw nothing
        share, keep = tl.exp2(sums - base), tl.exp2(largest - base)
        total = total * keep + tl.sum(share, 0)
        acc = acc * keep + tl.sum(values * share[:, None], 0)
        largest = new_largest
    return largest, total, acc


@triton.jit(do_not_specialize=["first_row", "q_len"])
def merge_kernel(
    out, lse, part_out, part_lse, prefix_out, prefix_lse, header, skip_of, member_of, cu_q, context_of,
    first_row, q_len, out_token, out_head,
    HEADS: tl.constexpr, V_HEAD: tl.constexpr, V_PAD: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr,
    LSE: tl.constexpr, TREE_WORDS: tl.constexpr, BLOCK_Q: tl.constexpr, TILE: tl.constexpr, SEGMENTS: tl.constexpr,
    MIXED: tl.constexpr, PREFIX: tl.constexpr, CHUNK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (queries, heads) of rows with `q_len` queries: the parts that attend_kernel wrote become out and lse.

    PREFIX: and with them what prefix_kernel gave, see attend_kernel.
    """
    await_previous(EARLY)
    index, head = tl.program_id(0), tl.program_id(1)
    row = first_row + index // q_len
    begin = tl.load(cu_q + row)
    if MIXED:  # noqa: SIM102 - one is known when compiling
        if tl.load(cu_q + row + 1) - begin != 1:
            return
    query = index % q_len // BLOCK_Q * BLOCK_Q
    context = tl.load(context_of + row)
    if PREFIX:
        skip = tl.load(skip_of + row)
        context -= skip
    _, _, first, last = _span(context, q_len, query, TILE, BLOCK_Q, WINDOW, CAUSAL, TREE_WORDS > 0)
    each = tl.cdiv(last - first, SEGMENTS)
    parts = tl.cdiv(last - first, each)  # the others wrote nothing

    dv = tl.arange(0, V_PAD)
    at = (index.to(tl.int64) * HEADS + head) * SEGMENTS
    largest, total = tl.full([], float("-inf"), tl.float32), tl.full([], 0.0, tl.float32)
    acc = tl.zeros([V_PAD], tl.float32)
    largest, total, acc = _merged(part_out, part_lse, at, parts, largest, total, acc, V_HEAD, V_PAD, CHUNK)
    if PREFIX:  # noqa: SIM102 - one is known when compiling
        if skip > 0:
            first_part, shared = _in_prefix(header, member_of, row, skip, head, HEADS, PREFIX)
            largest, total, acc = _merged(
                prefix_out, prefix_lse, first_part, shared, largest, total, acc, V_HEAD, V_PAD, CHUNK
            )
    token = (begin + index % q_len).to(tl.int64)
    tl.store(out + token * out_token + head * out_head + dv, (acc / total).to(out.dtype.element_ty), mask=dv < V_HEAD)
    if LSE:
        tl.store(lse + token * HEADS + head, (largest + tl.log2(total)) * LN_2)
