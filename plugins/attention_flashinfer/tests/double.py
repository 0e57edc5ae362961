"""A double of FlashInfer's two wrappers on the CPU: their signatures, their planner's needs of room, and their demands.

What it is given it checks first: what the library refuses, and what it would silently compute wrongly. Then it reads
the pages that it was given, whole tiles of keys from the window on as the kernels do, so that NaN beside visible ones
shows. A schedule goes to the room that was given for it, where another plan may overwrite it, as on the device.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from plugins.attention_flashinfer.tests.signatures import TABLE, signature

RECORDED: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
TILE = 128
"""Keys that are loaded together, from a multiple of it on."""
PROCESSORS = 132
BLOCKS = 16
"""Thread blocks of the decode kernel without tensor cores that a multiprocessor holds."""
RATIOS = (1, 2, 3, 4, 6, 8, 16)
SIZES = (64, 128, 256)
FP8 = torch.float8_e4m3fn
Log = list["Ran"]


def need(condition: bool, what: str) -> None:
    """What the library checks itself raises an error there too, of one kind or another."""
    if not condition:
        raise ValueError(f"double of FlashInfer: {what}")


@dataclass
class Ran:
    """One run: the wrapper and its settings, what plan was given, the kernel with all that it was given, its result."""

    wrapper: str
    backend: str
    graph: bool
    tensor_cores: bool
    plan: dict[str, Any]
    kernel: Callable[[], None]
    out: Tensor


def module(log: Log, version: str = RECORDED["version"]) -> Any:
    """To stand in for the module; runs are noted in `log`, latest last."""
    return SimpleNamespace(
        __version__=version,
        BatchDecodeWithPagedKVCacheWrapper=_wrapper("BatchDecodeWithPagedKVCacheWrapper", Decode, log),
        BatchPrefillWithPagedKVCacheWrapper=_wrapper("BatchPrefillWithPagedKVCacheWrapper", Prefill, log),
    )


def _wrapper(name: str, double: type[Wrapper], log: Log) -> type:
    """A class with the recorded signatures, which binds every call by them."""
    methods: dict[str, Any] = {}
    for method, arguments in RECORDED["signatures"][name].items():
        if method != "_plan_impl":
            methods[method] = _method(method, signature(arguments))
    made = type(name, (double,), methods)
    made.log = log  # type: ignore[attr-defined]
    return made


def _method(name: str, bound: Any) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = bound.bind(*args, **kwargs)
        given.apply_defaults()
        return getattr(self, f"do_{name.strip('_')}")(dict(given.arguments))

    call.__signature__ = bound  # type: ignore[attr-defined]
    return call


def _ints(x: Any, length: int, name: str) -> None:
    need(isinstance(x, Tensor) and x.dtype == torch.int32, f"{name} must be an int32 tensor")
    need(tuple(x.shape) == (length,), f"{name} must have shape ({length},), not {tuple(x.shape)}")
    need(x.is_contiguous(), f"{name} is not contiguous")


def _offsets(x: Tensor, name: str) -> list[int]:
    _ints(x, len(x), name)
    values: list[int] = x.tolist()
    need(values[0] == 0 and all(a <= b for a, b in itertools.pairwise(values)), f"{name} are no offsets: {values}")
    return values


def _room(x: Tensor, name: str) -> None:
    need(x.dtype == torch.uint8 and x.dim() == 1 and x.is_contiguous(), f"{name} must be a row of bytes")
    need(x.data_ptr() % 16 == 0, f"{name} does not start on 16 bytes")


class Wrapper:
    """What both have in common."""

    log: Log
    buffers: tuple[str, ...]
    tensor_cores = True

    def do_init(self, given: dict[str, Any]) -> None:
        self.workspace = given["float_workspace_buffer"]
        _room(self.workspace, "float_workspace_buffer")
        need(given["kv_layout"] == "NHD" and given["backend"] in ("auto", "fa2", "fa3"), "kv_layout or backend")
        need(given["jit_args"] is None and given["jit_kwargs"] is None, "this double has no kernels of others")
        self.backend, self.graph = given["backend"], given["use_cuda_graph"]
        self.schedule = torch.empty(8 << 20, dtype=torch.uint8)
        self.pinned = self.schedule.clone()
        fixed = [given[name] for name in self.buffers]
        need(all((x is not None) == self.graph for x in fixed), "fixed buffers go with use_cuda_graph")
        self.fixed = dict(zip(("indptr", "pages", "last", "cu_q"), fixed, strict=False)) if self.graph else {}
        if self.graph:
            self.rows = len(self.fixed["last"])
            need(len(self.fixed["indptr"]) == self.rows + 1, "the indptr buffer must have a number more than rows")
        self.planned: dict[str, Any] | None = None
        self.most_tokens = 0

    def do_reset_workspace_buffer(self, given: dict[str, Any]) -> None:
        self.workspace, self.schedule = given["float_workspace_buffer"], given["int_workspace_buffer"]
        _room(self.workspace, "float_workspace_buffer")
        _room(self.schedule, "int_workspace_buffer")
        self.pinned = self.schedule.clone()

    def take_over(self, host: dict[str, Tensor], pages: Tensor, given: dict[str, Any]) -> None:
        """Check a plan and bring it to its places. `host` has indptr, last, cu_q and length."""
        indptr = _offsets(host["indptr"], "indptr")
        rows = len(indptr) - 1
        need(rows > 0, "a plan without rows")
        _ints(host["last"], rows, "last_page_len")
        cu_q = _offsets(host["cu_q"], "qo_indptr")
        need(len(cu_q) == rows + 1, "qo_indptr and indptr are of different rows")
        _ints(pages, indptr[-1], "indices")
        page = given["page_size"]
        last = host["last"].tolist()
        need(all(1 <= n <= page for n in last), f"last_page_len {last} beside 1 … {page}")
        keys = [(b - a - 1) * page + n for (a, b), n in zip(itertools.pairwise(indptr), last, strict=True)]
        if host["length"] is not None:
            _ints(host["length"], rows, "seq_lens")
            need(host["length"].tolist() == keys, "seq_lens are not those of indptr and last_page_len")
        heads, kv_heads = given["num_qo_heads"], given["num_kv_heads"]
        need(heads % kv_heads == 0, "query heads are no multiple of KV heads")
        need(given["q_data_type"] in (torch.bfloat16, torch.float16), f"no kernel for {given['q_data_type']}")
        need(given["kv_data_type"] in (given["q_data_type"], FP8), f"no kernel for KV in {given['kv_data_type']}")
        need(given["kv_data_type"] != FP8 or self.backend == "fa2", "fp8 KV with other queries is for fa2 alone")
        need(given["window_left"] >= -1 and given["logits_soft_cap"] >= 0, "window_left or logits_soft_cap")
        if self.graph:
            need(rows == self.rows, f"a wrapper for {self.rows} rows was given {rows}")
            need(len(pages) <= len(self.fixed["pages"]), "more pages than the buffer has room for")
            self.most_tokens = self.most_tokens or cu_q[-1]
            need(cu_q[-1] <= self.most_tokens, "more tokens than in the first plan")
            self.fixed["indptr"].copy_(host["indptr"])
            self.fixed["last"].copy_(host["last"])
            self.fixed["pages"][: len(pages)].copy_(pages)
            if "cu_q" in self.fixed:
                self.fixed["cu_q"].copy_(host["cu_q"])
            device = {"cu_q": host["cu_q"].clone()} | self.fixed
        else:
            device = {name: host[name].clone() for name in ("indptr", "last", "cu_q")} | {"pages": pages}
        self._write(keys, cu_q, given)
        # A recorded kernel keeps addresses and numbers of the shape, not this step's numbers.
        self.planned = given | {"device": device, "tokens": cu_q[-1]}

    def _write(self, keys: list[int], cu_q: list[int], given: dict[str, Any]) -> None:
        """Lay the schedule where the kernel reads it, within the room that the planner asks for."""
        partial, ints = self.rooms([b - a for a, b in itertools.pairwise(cu_q)], keys, given)
        need(partial <= self.workspace.numel(), f"{partial} bytes of partial results do not fit the workspace")
        need(ints <= self.schedule.numel(), f"a schedule of {ints} bytes does not fit")
        made = _schedule(keys, cu_q)
        self.pinned.view(torch.int32)[: len(made)].copy_(made)
        self.schedule.view(torch.int32)[: len(made)].copy_(self.pinned.view(torch.int32)[: len(made)])

    def rooms(self, n_query: list[int], keys: list[int], given: dict[str, Any]) -> tuple[int, int]:
        """Bytes that the planner of fa2 allocates in the two workspaces."""
        ratio = given["num_qo_heads"] // given["num_kv_heads"]
        packed = [n * ratio for n in n_query]
        budget = 2 * PROCESSORS // given["num_kv_heads"]
        size = given.get("head_dim") or given["head_dim_qk"]
        typical = packed[0] if self.graph else sum(packed) // len(packed)
        tile = 128 if typical > 64 and size < 256 else 64 if typical > 16 else 16
        tiles = sum(-(-n // tile) for n in packed)
        split = not given["disable_split_kv"] and (self.graph or tiles < budget)
        padded = max(budget, tiles) if self.graph else budget if split else tiles
        partial = -(-padded * tile // ratio) * given["num_qo_heads"] * (size + 1) * 4 if split else 0
        ints = 4 * (3 * padded + len(keys) + sum(n_query) + 3) + padded
        if self.backend != "fa2":  # the planner for sm90: lists by piece of work and head
            pieces = sum(-(-n // 128) for n in n_query) * given["num_qo_heads"]
            ints = max(ints, 4 * (7 * pieces + PROCESSORS + 1))
        return partial, ints + 128

    def do_run(self, given: dict[str, Any]) -> Any:
        plan = self.planned
        if plan is None:
            raise ValueError("double of FlashInfer: run before plan")
        for name in ("q_scale", "k_scale", "v_scale", "sinks", "window_left", "kv_cache_sf", "args"):
            need(not given[name] if name == "args" else given[name] is None, f"{name} is given to run")
        need(given.get("lse_base", "log2") == "log2" and given.get("lse_layout", "NH") == "NH", "form of lse")
        q, out, lse = given["q"], given["out"], given["lse"]
        k, v = given["paged_kv_cache"]
        size = plan.get("head_dim") or plan["head_dim_qk"]
        need(tuple(q.shape) == (plan["tokens"], plan["num_qo_heads"], size), f"q has shape {tuple(q.shape)}")
        need(q.dtype == plan["q_data_type"], "the dtype of q is not that of the plan")
        need(k.dtype == v.dtype == plan["kv_data_type"], "the dtype of keys or values is not that of the plan")
        need(q.stride(2) == 1 and q.stride(0) % 8 == 0 and q.data_ptr() % 16 == 0, "q is not aligned")
        need(k.shape[1:] == (plan["page_size"], plan["num_kv_heads"], size), f"keys have shape {tuple(k.shape)}")
        need(v.shape == k.shape and v.stride() == k.stride(), "keys and values must be laid out alike")
        need(k.stride()[1:] == (k.shape[2] * size, size, 1), "tokens of a page are not dense")
        need(out.shape == q.shape and out.dtype == q.dtype and out.is_contiguous(), "out does not fit")
        if given["return_lse"]:
            need(lse is not None and lse.shape == q.shape[:2] and lse.dtype == torch.float32, "lse does not fit")
            need(lse.is_contiguous(), "lse is not contiguous")
        written = lse if given["return_lse"] else None
        schedule = self.schedule

        def kernel() -> None:
            _attend(plan, schedule, (q, k, v), out, written)

        self.log.append(Ran(type(self).__name__, self.backend, self.graph, self.tensor_cores, plan, kernel, out))
        kernel()
        return (out, lse) if given["return_lse"] else out


class Decode(Wrapper):
    """Rows of one query."""

    buffers = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")

    def do_init(self, given: dict[str, Any]) -> None:
        super().do_init(given)
        self.tensor_cores = given["use_tensor_cores"]
        need(self.backend == "fa2", "on Blackwell auto may read what is not given to it")

    def do_plan(self, given: dict[str, Any]) -> None:
        need(not given.pop("deprecated_positional_args"), "arguments by position are deprecated")
        extra = signature(RECORDED["signatures"]["BatchDecodeWithPagedKVCacheWrapper"]["_plan_impl"])
        more = given.pop("kwargs")
        bound = extra.bind(**given, **more)
        bound.apply_defaults()
        given = dict(bound.arguments)
        _only(given, more.keys(), extra)
        need(given["head_dim"] in SIZES, f"no kernel for heads of {given['head_dim']}")
        ratio = given["num_qo_heads"] // given["num_kv_heads"]
        need(self.tensor_cores or ratio in RATIOS, f"no kernel without tensor cores for a ratio of {ratio}")
        host = {"indptr": given["indptr"], "last": given["last_page_len"], "length": given["seq_lens"]}
        host["cu_q"] = torch.arange(len(given["indptr"]), dtype=torch.int32)
        self.take_over(host, given["indices"], given | {"causal": False})

    def rooms(self, n_query: list[int], keys: list[int], given: dict[str, Any]) -> tuple[int, int]:
        if self.tensor_cores:
            return super().rooms(n_query, keys, given)
        padded = max(BLOCKS * PROCESSORS // given["num_kv_heads"], len(keys))
        partial = padded * given["num_qo_heads"] * (given["head_dim"] + 1) * 4
        crowd = len(keys) * given["num_kv_heads"] >= BLOCKS * PROCESSORS
        return 0 if crowd else partial, 4 * (3 * padded + 2) + padded + 64


class Prefill(Wrapper):
    """Rows of any number of queries."""

    buffers = ("paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf", "qo_indptr_buf")

    def do_init(self, given: dict[str, Any]) -> None:
        super().do_init(given)
        self.masks = given["custom_mask_buf"], given["mask_indptr_buf"]
        mask, offsets = self.masks
        need((mask is None) == (offsets is None) and (mask is None or self.graph), "buffers of masks go together")
        if mask is not None:
            need(mask.dtype == torch.uint8 and mask.dim() == 1 and mask.is_contiguous(), "a mask is a row of bytes")
            _ints(offsets, self.rows + 1, "mask_indptr_buf")
        need(not self.graph or self.backend == "fa2", "a recorded schedule must be of one backend")

    def do_plan(self, given: dict[str, Any]) -> None:
        named = {"causal", "sm_scale", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type", "seq_lens"}
        named |= {"disable_split_kv", "uniform_q_len", "packed_custom_mask"}
        _only(given, named, type(self).plan.__signature__)  # type: ignore[attr-defined]
        need(given["head_dim_qk"] in SIZES, f"no kernel for heads of {given['head_dim_qk']}")
        n_query = given["qo_indptr"].diff().tolist()
        uniform = given["uniform_q_len"]
        need(uniform is None or set(n_query) == {uniform}, "uniform_q_len does not hold")
        need(
            not self.graph or uniform is not None, "without uniform_q_len a recorded plan keeps room for the worst case"
        )
        host = {"indptr": given["paged_kv_indptr"], "last": given["paged_kv_last_page_len"]}
        host |= {"cu_q": given["qo_indptr"], "length": given["seq_lens"]}
        self.take_over(host, given["paged_kv_indices"], given)
        self._take_mask(host, given["packed_custom_mask"], given)

    def _take_mask(self, host: dict[str, Tensor], given: Tensor | None, plan: dict[str, Any]) -> None:
        """A mask, and where it has its rows': at as many bytes as they have bits, unless a buffer is told otherwise."""
        assert self.planned is not None
        need(self.masks[0] is None or given is not None, "a wrapper with a buffer for masks masks by it")
        if given is None:
            return
        need(self.backend == "fa2", "masks are for fa2 alone")
        need(plan["window_left"] == -1, "this mask says what is in the window")
        need(given.dtype == torch.uint8 and given.dim() == 1, "a packed mask is a row of bytes")
        bits = host["cu_q"].diff() * host["length"]
        offsets = torch.cat((bits.new_zeros(1), bits.cumsum(0))).to(torch.int32)
        mask, where = self.masks
        if not self.graph:
            need(len(given) >= int(offsets[-1]), "the mask ends before its last row's")
            mask, where = given, offsets
        else:
            need(mask is not None, "a recorded wrapper masks by its own buffer")
            mask[: len(given)].copy_(given)
            where.copy_(offsets)
        self.planned["device"] |= {"mask": mask, "mask_offsets": where}


def _only(given: dict[str, Any], named: Any, bound: Any) -> None:
    """What this double has no numbers for must be as it is by default."""
    for name, parameter in bound.parameters.items():
        if name not in named and parameter.default is not parameter.empty:
            need(given[name] == parameter.default, f"{name} is {given[name]}")


def _schedule(keys: Sequence[int], cu_q: Sequence[int]) -> Tensor:
    return torch.tensor([len(keys), *keys, *cu_q], dtype=torch.int32)


def _attend(
    plan: dict[str, Any], schedule: Tensor, qkv: tuple[Tensor, Tensor, Tensor], out: Tensor, lse: Tensor | None
) -> None:
    """The kernel: reads all numbers of a step from device memory, as a replayed one does."""
    device, page = plan["device"], plan["page_size"]
    indptr, cu_q, last = (device[name].tolist() for name in ("indptr", "cu_q", "last"))
    keys = [(b - a - 1) * page + n for (a, b), n in zip(itertools.pairwise(indptr), last, strict=True)]
    made = _schedule(keys, cu_q)
    need(torch.equal(schedule.view(torch.int32)[: len(made)], made), "the schedule is of other rows or lengths")
    need(cu_q[-1] == plan["tokens"], "the schedule is of other tokens")
    for row, n_keys in enumerate(keys):
        part = slice(cu_q[row], cu_q[row + 1])
        pages = device["pages"][indptr[row] : indptr[row + 1]].long()
        need(bool(((pages >= 0) & (pages < len(qkv[1]))).all()), f"page ids of row {row} out of range")
        mask = None if "mask" not in device else _mask(device, row, (cu_q[row + 1] - cu_q[row], n_keys))
        values, sums = _row(plan, qkv[0][part].float(), n_keys, pages, qkv[1:], mask)
        out[part] = values
        if lse is not None:
            lse[part] = sums.t() / math.log(2)  # base 2, as the kernels


def _mask(device: dict[str, Any], row: int, shape: tuple[int, int]) -> Tensor:
    """Bool [queries, keys] of the bits from a row's first byte on, the lowest first."""
    begin, size = int(device["mask_offsets"][row]), shape[0] * shape[1]
    packed = device["mask"][begin : begin + -(-size // 8)].int()
    need(len(packed) == -(-size // 8), f"the mask of row {row} ends before its last bit")
    return (packed[:, None] >> torch.arange(8) & 1).flatten()[:size].view(shape).bool()


def _row(
    plan: dict[str, Any], q: Tensor, n_keys: int, pages: Tensor, planes: tuple[Tensor, ...], mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Out [n, heads, size] and natural lse [heads, n] of one row's queries q [n, heads, size]."""
    n, heads, _ = q.shape
    left, page = plan["window_left"], plan["page_size"]
    low = 0 if left < 0 else max(0, n_keys - n - left) // TILE * TILE
    key = torch.arange(low, n_keys)  # keys past the last are loaded as zeros
    keys, values = (plane[pages[key // page], key % page].float() for plane in planes)
    position = n_keys - n + torch.arange(n)[:, None]
    see = torch.ones(n, len(key), dtype=torch.bool)
    if mask is not None:
        see &= mask[:, low:]
    elif plan["causal"]:
        see &= key[None] <= position
    if left >= 0:
        see &= key[None] >= position - left
    keys, values = (x.repeat_interleave(heads // keys.shape[1], 1) for x in (keys, values))
    score = torch.einsum("nhd,khd->hnk", q, keys) * plan["sm_scale"]
    if plan["logits_soft_cap"] > 0:
        score = plan["logits_soft_cap"] * torch.tanh(score / plan["logits_soft_cap"])
    score = score.masked_fill(~see, -torch.inf)
    lse = torch.logsumexp(score, -1)
    return torch.einsum("hnk,khd->nhd", torch.exp(score - lse[..., None]), values), lse
