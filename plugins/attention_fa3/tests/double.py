"""A double of FlashAttention-3's operators on the CPU: registered with their schemas, as exacting as they are, slow.

What it is given it checks first: what the kernels refuse, and what they would silently compute wrongly. Then it reads
the pages that it was given, whole tiles of keys as the kernels do, so that NaN beside the visible keys shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

HEAD = (
    "Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, {out}, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k, "
    "Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin, "
    "Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
)
MASK = "bool is_causal, int window_size_left, int window_size_right, "
TAIL = (
    "float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, "
    "int sm_margin, "
)
AHEAD = (
    "int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, int headdim, int headdim_v, "
    "ScalarType qkv_dtype, Tensor seqused_k, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, "
    "Tensor? seqused_q, Tensor? leftpad_k, int? page_size, int max_seqlen_k_new, " + MASK
)
AHEAD_TAIL = "bool has_softcap, int num_splits, bool? pack_gqa, int sm_margin) -> Tensor"
SCHEMAS = {
    "_vllm_fa3_C": (  # as registered by the library in vllm 0.22.0
        f"fwd(Tensor! q, {HEAD.format(out='Tensor!? out')}float softmax_scale, {MASK}{TAIL}"
        "Tensor? s_aux, int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) -> Tensor[]",
        f"get_scheduler_metadata({AHEAD}{AHEAD_TAIL}",
    ),
    "sgl_kernel": (  # as in sglang-kernel's sources
        f"fwd(Tensor q, {HEAD.format(out='Tensor? out')}float? softmax_scale, {MASK}int attention_chunk, {TAIL}"
        "Tensor? sinks) -> (Tensor, Tensor, Tensor, Tensor)",
        f"get_scheduler_metadata({AHEAD}int attention_chunk, {AHEAD_TAIL}",
    ),
}
OFF: dict[str, object] = {
    **dict.fromkeys(("k_new", "v_new", "cu_seqlens_k_new", "seqused_q", "kv_batch_idx", "leftpad_k")),
    **dict.fromkeys(("rotary_cos", "rotary_sin", "seqlens_rotary", "q_descale", "k_descale", "v_descale")),
    **dict.fromkeys(("pack_gqa", "s_aux", "sinks", "cp_tot_seqused_k")),
    **dict.fromkeys(("attention_chunk", "sm_margin", "cp_rank", "max_seqlen_k_new"), 0),
    "cp_world_size": 1,
    "is_rotary_interleaved": True,
}
"""What this double has no numbers for must be off."""
TILE = 128
"""Keys that are loaded together, from a multiple of it on."""


@contextmanager
def registered(namespace: str, log: list[dict[str, Any]] | None = None) -> Iterator[None]:
    """Both operators of a provider on the CPU; calls of the first are noted in `log` by argument name."""
    library = torch.library.Library(namespace, "FRAGMENT")
    for schema, function in zip(SCHEMAS[namespace], (_forward, _schedule), strict=True):
        name = library.define(schema)
        names = [part.split()[-1] for part in schema.partition("(")[2].partition(") ->")[0].split(",")]
        library.impl(name, _by_name(names, function, log if function is _forward else None), "CPU")
    try:
        yield
    finally:
        library._destroy()


def _by_name(
    names: Sequence[str], function: Callable[[dict[str, Any]], Any], log: list[dict[str, Any]] | None
) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        given = dict(zip(names, args, strict=True))
        for name in OFF.keys() & given.keys():
            need(given[name] is OFF[name] or given[name] == OFF[name], f"{name} is {given[name]}")
        if log is not None:
            log.append(given)
        return function(given)

    return call


def need(condition: bool, what: str) -> None:
    """What the operator checks itself raises the same kind of error as there."""
    if not condition:
        raise RuntimeError(f"double of FlashAttention-3: {what}")


def _ints(x: Tensor, shape: Sequence[int], name: str) -> None:
    need(x.dtype == torch.int32, f"{name} must be int32, not {x.dtype}")
    need(tuple(x.shape) == tuple(shape), f"{name} must have shape {tuple(shape)}, not {tuple(x.shape)}")
    need(x.stride(-1) == 1, f"{name} is not dense")


def _aligned(x: Tensor, name: str) -> None:
    """TMA and 16-byte loads."""
    need(x.stride(-1) == 1, f"{name} must have a contiguous last dimension")
    need(all(stride % 8 == 0 for stride in x.stride()[:-1]), f"strides of {name} are no multiples of 16 bytes")
    need(x.data_ptr() % 16 == 0, f"{name} does not start on 16 bytes")


def _forward(given: dict[str, Any]) -> list[Tensor]:
    q, k, v, out = (given[name] for name in ("q", "k", "v", "out"))
    need(q.dtype in (torch.bfloat16, torch.float16), f"no kernel for {q.dtype}")
    need(k.dtype == v.dtype == out.dtype == q.dtype, "query, keys, values and out must have the same dtype")
    for name in ("q", "k", "v", "out"):
        _aligned(given[name], name)
    tokens, heads, size = q.shape
    v_size = v.shape[-1]
    if given["q_v"] is not None:
        need(size <= 64 and 256 <= v_size <= 512, f"q_v with heads of {size} and {v_size}")
        need(given["q_v"].shape == (tokens, heads, v_size) and given["q_v"].dtype == q.dtype, "q_v does not fit")
        _aligned(given["q_v"], "q_v")
    need(size % 8 == 0 and size <= 256 and v_size % 8 == 0, f"no kernel for head sizes {size}, {v_size}")
    other = (128 < size <= 192 and 96 < v_size <= 128) or (size <= 64 and v_size <= 512)
    need(v_size == size or other, f"no kernel for keys of {size} with values of {v_size}")
    need(tuple(out.shape) == (tokens, heads, v_size), f"out has shape {tuple(out.shape)}")
    need(heads % k.shape[-2] == 0 and v.shape[:-1] == k.shape[:-1] and k.shape[-1] == size, "keys do not fit")
    need(0 <= given["num_splits"] <= 256 and given["softcap"] >= 0, "num_splits or softcap out of range")
    rows = len(given["cu_seqlens_q"]) - 1
    _ints(given["cu_seqlens_q"], (rows + 1,), "cu_seqlens_q")
    bounds = given["cu_seqlens_q"].tolist()
    lengths = [end - begin for begin, end in itertools.pairwise(bounds)]
    # Tokens behind the last row are nobody's, and what is computed for them is not written.
    need(bounds[0] == 0 and bounds[-1] <= tokens and min(lengths) >= 0, f"cu_seqlens_q {bounds} for {tokens} tokens")
    need(given["max_seqlen_q"] >= max(lengths), "max_seqlen_q is below a row's length: queries would be left out")
    paged = given["page_table"] is not None
    n_keys, read = _paged(given, rows) if paged else _dense(given, rows)
    need(given["max_seqlen_k"] >= max(n_keys), "max_seqlen_k is below a row's length")
    if given["scheduler_metadata"] is not None:
        need(paged, "a schedule was made for pages")
        _fits(given, rows)
    lse = torch.empty(heads, tokens)
    for row, n in enumerate(n_keys):
        part = slice(bounds[row], bounds[row + 1])
        if lengths[row]:
            q_v = None if given["q_v"] is None else given["q_v"][part].float()
            out[part], lse[:, part] = _row(given, (q[part].float(), q_v), n, read, row)
    return [out, lse, torch.empty(0), torch.empty(0)]


Read = Callable[[int, int, int], tuple[Tensor, Tensor]]


def _paged(given: dict[str, Any], rows: int) -> tuple[list[int], Read]:
    """Keys of each row, and a function that loads keys [low, high) of one."""
    k, v, table, used = (given[name] for name in ("k", "v", "page_table", "seqused_k"))
    need(given["cu_seqlens_k"] is None, "cu_seqlens_k together with a page table")
    need(k.dim() == 4, "pages must be [pages, tokens, heads, size]")
    _ints(used, (rows,), "seqused_k")
    _ints(table, (rows, table.shape[1]), "page_table")
    page, n_keys = k.shape[1], used.tolist()
    need(max(n_keys) <= table.shape[1] * page, "a row is longer than its page table")
    for row, n in enumerate(n_keys):
        ids = table[row, : -(-n // page)]
        need(bool(((ids >= 0) & (ids < len(k))).all()), f"page ids of row {row} out of range")

    def read(row: int, low: int, high: int) -> tuple[Tensor, Tensor]:
        high = min(high, -(-n_keys[row] // page) * page)  # the tail of the last page, and no page more
        key = torch.arange(low, high)
        pages = table[row, key // page].long()
        return k[pages, key % page].float(), v[pages, key % page].float()

    return n_keys, read


def _dense(given: dict[str, Any], rows: int) -> tuple[list[int], Read]:
    k, v, cu = (given[name] for name in ("k", "v", "cu_seqlens_k"))
    need(given["seqused_k"] is None and k.dim() == 3, "dense keys are [tokens, heads, size], bound by cu_seqlens_k")
    _ints(cu, (rows + 1,), "cu_seqlens_k")
    bounds = cu.tolist()
    need(bounds[0] == 0 and bounds[-1] <= len(k), f"cu_seqlens_k {bounds} for {len(k)} tokens")

    def read(row: int, low: int, high: int) -> tuple[Tensor, Tensor]:
        part = slice(bounds[row] + low, min(bounds[row] + high, bounds[row + 1]))
        return k[part].float(), v[part].float()

    return [end - begin for begin, end in itertools.pairwise(bounds)], read


def _row(
    given: dict[str, Any], queries: tuple[Tensor, Tensor | None], n_keys: int, read: Read, row: int
) -> tuple[Tensor, Tensor]:
    """Out [n, heads, v_size] and lse [heads, n] of one row's queries [n, heads, size], of keys and of values."""
    q, q_v = queries
    n, heads, size = q.shape
    left, right, causal = given["window_size_left"], given["window_size_right"], given["is_causal"]
    position = n_keys - n + torch.arange(n)[:, None]
    low = 0 if left < 0 else max(0, n_keys - n - left) // TILE * TILE
    keys, values = read(row, low, -(-n_keys // TILE) * TILE)
    key = low + torch.arange(len(keys))[None]
    see = key < n_keys
    if causal or right >= 0:
        see = see & (key <= position + max(0, 0 if causal else right))
    if left >= 0:
        see = see & (key >= position - left)
    group = heads // keys.shape[1]
    keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
    scale = size**-0.5 if given["softmax_scale"] is None else given["softmax_scale"]
    score = torch.einsum("nhd,khd->hnk", q, keys)
    if q_v is not None:
        score = score + torch.einsum("nhd,khd->hnk", q_v, values)
    score = score * scale
    if given["softcap"] > 0:
        score = given["softcap"] * torch.tanh(score / given["softcap"])
    score = score.masked_fill(~see, -torch.inf)
    lse = torch.logsumexp(score, -1)
    weight = torch.exp(score - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
    return torch.einsum("hnk,khd->nhd", weight, values), lse


def _schedule(given: dict[str, Any]) -> Tensor:
    """As long as the operator's, and it tells the lengths and arguments that it was made for."""
    rows = given["batch_size"]
    _ints(given["seqused_k"], (rows,), "seqused_k")
    _ints(given["cu_seqlens_q"], (rows + 1,), "cu_seqlens_q")
    need(given["qkv_dtype"] in (torch.bfloat16, torch.float16), "no kernel for this dtype")
    fields = ("max_seqlen_q", "max_seqlen_k", "num_heads", "num_heads_k", "headdim", "headdim_v", "page_size")
    return _written(
        given["seqused_k"],
        given["cu_seqlens_q"],
        [*(given[name] for name in fields), *_masks(given), given["has_softcap"]],
        local=given["window_size_left"] >= 0,
    )


def _fits(given: dict[str, Any], rows: int) -> None:
    """Raise unless the schedule is the one of this very call: a stale or foreign one leaves keys out."""
    q, k, v = (given[name] for name in ("q", "k", "v"))
    shape = [given["max_seqlen_q"], given["page_table"].shape[1] * k.shape[1]]  # max_seqlen_k is not looked at
    shape += [q.shape[1], k.shape[2], q.shape[2], v.shape[3], k.shape[1]]
    made = _written(
        given["seqused_k"],
        given["cu_seqlens_q"],
        [*shape, *_masks(given), given["softcap"] > 0],
        local=given["window_size_left"] >= 0,
    )
    found = given["scheduler_metadata"]
    _ints(found, made.shape, "scheduler_metadata")
    need(torch.equal(found, made), "the schedule is not that of these arguments and lengths")


def _masks(given: dict[str, Any]) -> list[int]:
    return [given[name] for name in ("is_causal", "window_size_left", "window_size_right", "num_splits")]


def _written(used: Tensor, cu_q: Tensor, arguments: Sequence[int], *, local: bool) -> Tensor:
    """Vectors of numbers a row, and a counter that starts at 0."""
    rows = len(used)
    rounded = -(-rows // 4) * 4
    made = torch.zeros((3 if local else 4) * rounded + 1, dtype=torch.int32)
    made[:rows] = used
    made[rounded : rounded + rows] = cu_q.diff()
    made[2 * rounded] = hash(tuple(map(int, arguments))) % (1 << 31)
    return made
