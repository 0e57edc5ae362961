"""A double of what is called of aiter: recorded signatures, demands by architecture and version, and float32.

Each call is bound by the signature that its version defines and checked: what aiter refuses, what ends the process, and
what it would silently compute wrongly. Then keys are read through the indices that were given, and beside them all that
the kernel loads without using it, so that NaN there shows. Knows nothing of the plugin but the names in its `Library`.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import srtkit_plugin_attention_aiter as plugin
from srtkit_plugin_attention_aiter.library import FUNCTIONS, Library, called

TABLE: dict[str, dict[str, str]] = json.loads(
    Path(plugin.__file__).with_name("signatures.json").read_text(encoding="utf-8")
)["versions"]  # type: ignore[assignment]
OLD, NEWER = TABLE
UNITS = {"gfx942": 304, "gfx950": 256}
FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
HALVES = (torch.bfloat16, torch.float16)
Given = dict[str, Any]


class Refused(Exception):
    """What would fail, abort the process or be wrong."""


def need(condition: object, what: str) -> None:
    """Refuse unless it holds."""
    if not condition:
        raise Refused(f"double of aiter: {what}")


def recorded(version: str, module: str, function: str) -> inspect.Signature:
    """The signature of a function as the table has it."""
    return signature(TABLE[version][f"{module.replace('.', '/')}.py:{function}"])


def signature(parameters: str) -> inspect.Signature:
    """Of "(name, other=default)"; a default that is no literal counts as one that must not be changed."""
    arguments = ast.parse(f"def f{parameters}: ...").body[0].args  # type: ignore[attr-defined]
    empty = [inspect.Parameter.empty] * (len(arguments.args) - len(arguments.defaults))
    defaults = [*empty, *map(_literal, arguments.defaults)]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [inspect.Parameter(one.arg, kind, default=value) for one, value in zip(arguments.args, defaults, strict=True)]
    )


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


@dataclass
class Double:
    """aiter of one version on one architecture. `log`: (name, arguments) of each call, latest last."""

    architecture: str
    newer: bool
    log: list[tuple[str, Given]] = field(default_factory=list)

    def library(self) -> Library:
        """To be handed to a backend."""
        version = NEWER if self.newer else OLD
        made = {name: self._function(name, version) for name in FUNCTIONS}
        return Library(version, self.newer, **made)

    def _function(self, name: str, version: str) -> Callable[..., Any]:
        module, function, arguments = called(name, newer=self.newer)
        bound = recorded(version, module, function)

        def call(*args: Any, **kwargs: Any) -> Any:
            need(not args, f"{function} is called by position")
            given = bound.bind(**kwargs)
            for one, parameter in bound.parameters.items():
                if one not in arguments:
                    need(one not in kwargs, f"{function}({one}) is given and not among the listed arguments")
                    given.arguments[one] = parameter.default
            self.log.append((name, dict(given.arguments)))
            return getattr(self, f"_{name}")(dict(given.arguments))

        call.__signature__ = bound  # type: ignore[attr-defined]
        return call

    # --- keys and values

    def _prefill(self, given: Given) -> Tensor:
        q, k, v, out = given["q"], given["k"], given["v"], given["out"]
        if k.dim() == 5:
            need(self.newer, "0.1.7 takes slots [N, heads, size] only")
            return self._prefill_vectors(given)
        need(k.dim() == v.dim() == 3, "slots are [N, heads, size]")
        need(q.dtype in HALVES and q.dtype == k.dtype == v.dtype == out.dtype, "dtypes must be one of 16 bits")
        need(q.shape[2] <= 128 and q.shape[2] % 8 == 0 and v.shape == k.shape, "0.1.7 has tiles for heads up to 128")
        _heads(q, k)
        for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
            need(x.stride(-1) == 1 and x.stride(0) % 8 == 0 and x.stride(1) % 8 == 0, f"{name} is not aligned")
        need(k.nbytes <= 1 << 31, "offsets in a plane of more than 2 GiB wrap")
        cu_q = _offsets(given["cu_seqlens_q"], "cu_seqlens_q", len(q))
        indptr = _offsets(given["kv_indptr"], "kv_indptr")
        indices = given["kv_page_indices"]
        _ints(indices, "kv_page_indices")
        need(len(indices) >= indptr[-1] + 128, "kv_page_indices is read for 128 entries past its end")
        read = _in_range(indices[: indptr[-1] + 128], len(k), "kv_page_indices")
        _bound(given["max_seqlen_q"], cu_q, "max_seqlen_q")
        _bound(given["max_seqlen_k"], indptr, "max_seqlen_k")
        need(given["causal"] is True and given["softmax_scale"] is not None, "causal and softmax_scale")
        for row, queries, keys in _rows(cu_q, indptr):
            slots = read[keys]
            beside = v[read[keys.stop : keys.stop + 128]]
            result = _attend(q[queries], k[slots], v[slots], given["softmax_scale"], given["logits_soft_cap"])
            need(len(slots) >= queries.stop - queries.start, f"row {row} has fewer keys than queries")
            out[queries] = result + _spoiled(beside)
        return out  # type: ignore[no-any-return]

    def _prefill_vectors(self, given: Given) -> Tensor:
        q, k, v, out = given["q"], given["k"], given["v"], given["out"]
        need(q.dtype in HALVES and q.dtype == k.dtype == v.dtype == out.dtype, "dtypes must be one of 16 bits")
        need(q.shape[2] <= 128, "has tiles for heads up to 128")
        page, keys, values = from_vectors(k, v, q)
        need(k.nbytes <= 1 << 31, "offsets in a plane of more than 2 GiB wrap")
        need(q.stride(-1) == out.stride(-1) == 1 and q.stride(0) % 8 == 0, "q or out is not aligned")
        cu_q = _offsets(given["cu_seqlens_q"], "cu_seqlens_q", len(q))
        indptr = _offsets(given["kv_indptr"], "kv_indptr")
        indices, last = given["kv_page_indices"], given["kv_last_page_lens"]
        _ints(indices, "kv_page_indices")
        need(last is not None, "pages of several tokens need kv_last_page_lens")
        _ints(last, "kv_last_page_lens")
        need(len(indices) >= indptr[-1] + 128, "kv_page_indices is read for 128 entries past its end")
        read = _in_range(indices[: indptr[-1] + 128], len(k), "kv_page_indices")
        _bound(given["max_seqlen_q"], cu_q, "max_seqlen_q")
        need(given["max_seqlen_k"] >= page * max(b - a for a, b in itertools.pairwise(indptr)), "max_seqlen_k")
        for row, queries, pages in _rows(cu_q, indptr):
            n = (pages.stop - pages.start - 1) * page + int(last[row])
            mine, theirs = (x[read[pages]].flatten(0, 1) for x in (keys, values))
            beside = values[read[pages.stop : pages.stop + 128]]
            result = _attend(q[queries], mine[:n], theirs[:n], given["softmax_scale"], given["logits_soft_cap"])
            out[queries] = result + _spoiled(theirs[n:]) + _spoiled(beside)
        return out  # type: ignore[no-any-return]

    def _asm(self, given: Given) -> Tensor:
        q, k, v, out = given["Q"], given["K"], given["V"], given["out_"]
        need(q.dtype in HALVES and q.dtype == k.dtype == v.dtype == out.dtype, "dtypes must be one of 16 bits")
        page, keys, values = from_vectors(k, v, q)
        need((q.shape[2], page) == (128, 16), f"has no kernel for heads of {q.shape[2]} in pages of {page}")
        need(_heads(q, keys) <= 16, "has no kernel for more than 16 query heads on a KV head")
        need(q.stride()[1:] == (128, 1) and out.is_contiguous(), "heads of a query must be dense, and all of out")
        need(len(k) <= 65536, "pages from 65,536 on are silently taken for others")
        table, lengths = given["block_tables"], given["context_lens"]
        need(table.dtype == torch.int32 and table.stride(1) == 1 and len(table) == len(q), "block_tables")
        need(given["block_tables_stride0"] == table.stride(0), "block_tables_stride0")
        _ints(lengths, "context_lens")
        for row, n in enumerate(lengths.tolist()):
            pages = _in_range(table[row, : -(-n // page)], len(k), "block_tables")
            mine, theirs = (x[pages].flatten(0, 1) for x in (keys, values))
            result = _attend(q[row : row + 1], mine[:n], theirs[:n], 128**-0.5, 0.0)
            out[row : row + 1] = result + _spoiled(theirs[n:])
        return out  # type: ignore[no-any-return]

    def _decode(self, given: Given) -> Tensor:
        q, out, k, v = given["query"], given["out"], given["key_cache"], given["value_cache"]
        rows, heads, size = q.shape
        block, parts = given["block_size"], given["max_num_partitions"]
        need(given["alibi_slopes"] is None and given["kv_cache_layout"] == "NHD", "alibi_slopes, kv_cache_layout")
        need(q.dtype in HALVES and out.dtype == q.dtype and out.shape == q.shape, "dtype or shape of query and out")
        need(size in (64, 128), f"is not compiled for heads of {size}")
        need(q.stride()[1:] == (size, 1) and out.is_contiguous(), "heads of a query must be dense, and all of out")
        fp8 = given["kv_cache_dtype"] == "fp8_e4m3"
        need(fp8 or given["kv_cache_dtype"] == "auto", "kv_cache_dtype")
        need(k.dtype == v.dtype == (FP8[self.architecture] if fp8 else q.dtype), f"reads no {k.dtype}")
        need(k.dim() == 4 and k.shape[1] == block and k.shape == v.shape and k.stride() == v.stride(), "caches")
        need(k.stride(3) == 1, "the last dimension of caches must be dense")
        need(block <= 32 and 256 % block == 0, f"does not compile for blocks of {block}")
        ratio = _heads(q, k)
        need(ratio <= 16 or ratio % -(-ratio // 16) == 0, f"forgets heads of a ratio of {ratio}")
        for name in ("k_scale", "v_scale"):
            need(given[name].shape == (1,) and given[name].dtype == torch.float32, f"{name} must be float32 [1]")
        room = given["workspace_buffer"]
        need(room.dtype == torch.uint8 and room.is_contiguous(), "workspace_buffer must be a row of bytes")
        need(len(room) >= rows * heads * parts * (size * q.itemsize + 8), "workspace_buffer is too small")
        indptr = _offsets(given["kv_indptr"], "kv_indptr")
        need(len(indptr) == rows + 1, "kv_indptr is of other rows")
        indices, last = given["kv_page_indices"], given["kv_last_page_lens"]
        _ints(indices, "kv_page_indices")
        _ints(last, "kv_last_page_lens")
        read = _in_range(indices[: indptr[-1]], len(k), "kv_page_indices")
        room.random_(0, 255)
        for row, _, blocks in _rows(range(rows + 1), indptr):
            end = int(last[row])
            need(blocks.stop > blocks.start and 1 <= end <= block, f"row {row} has {end} tokens in its last block")
            n = (blocks.stop - blocks.start - 1) * block + end
            need(n <= 256 * parts, f"row {row} has more keys than partitions")
            keys, values = (x[read[blocks]].flatten(0, 1) for x in (k, v))
            keys, values = keys.float() * given["k_scale"], values.float() * given["v_scale"]
            result = _attend(q[row : row + 1], keys[:n], values[:n], given["scale"], given["logits_soft_cap"])
            out[row : row + 1] = result + _spoiled(values[n:])
        return out  # type: ignore[no-any-return]

    def _unified(self, given: Given) -> None:
        q, k, v, out = given["q"], given["k"], given["v"], given["out"]
        need(given["causal"] is True and given["q_descale"] is None, "takes causal attention and no q_descale")
        need(q.dtype in HALVES and out.dtype == q.dtype and out.shape == q.shape, "dtype or shape of q and out")
        fp8 = k.dtype != q.dtype
        need(k.dtype == v.dtype and (not fp8 or k.dtype == FP8[self.architecture]), f"reads no {k.dtype}")
        scales = [given[name] for name in ("k_descale", "v_descale")]
        need(all((one is not None and one.numel() == 1) == fp8 for one in scales), "descales go with fp8, one each")
        need(k.dim() == 4 and k.shape == v.shape and k.shape[3] == q.shape[2], "shape of caches")
        need(q.shape[2] <= 256 or self.newer, "0.1.7 has no tiles for heads above 256")
        need(_heads(q, k) <= 128, "more than 128 query heads on a KV head")
        sinks = given["sinks"]
        need(sinks is None or sinks.shape == q.shape[1:2], "sinks must be [query heads]")
        lengths, table, page = given["seqused_k"], given["block_table"], k.shape[1]
        need(lengths.dtype == torch.int64, "int32 lengths make offsets of 32 bits, which wrap at 2 GiB")
        need(table.dtype == torch.int32 and table.dim() == 2 and table.stride(1) == 1, "block_table must be int32")
        need(page & (page - 1) == 0, f"pages of {page}")
        cu_q = _offsets(given["cu_seqlens_q"], "cu_seqlens_q", len(q))
        need(len(lengths) == len(table) == len(cu_q) - 1, "block_table or seqused_k is of other rows")
        left, right = given["window_size"]
        need((left, right) == (-1, -1) or (left >= 0 and right == 0), f"window_size {(left, right)}")
        tile = self._tile(given, page)
        need(tile >= 16, f"has tiles of {tile} keys, too few for a product of matrices")
        need(given["max_seqlen_q"] > 1 or max(b - a for a, b in itertools.pairwise(cu_q)) == 1, "max_seqlen_q is 1")
        _bound(given["max_seqlen_q"], cu_q, "max_seqlen_q")
        need(given["max_seqlen_k"] >= int(lengths.max()), "max_seqlen_k is too small")
        k_scale, v_scale = (1.0 if one is None else float(one) for one in scales)
        for row, queries, _ in _rows(cu_q, cu_q):
            n, count = int(lengths[row]), queries.stop - queries.start
            need(n >= count, f"row {row} has fewer keys than queries")
            columns = -(-n // tile) * tile // page if tile >= page else -(-n // page)
            need(columns <= table.shape[1], "block_table is read past its end")
            pages = _in_range(table[row, :columns], len(k), "block_table")
            low = 0 if left < 0 else max(0, n - count - left) // tile * tile
            token = torch.arange(low, -(-n // tile) * tile if tile == page else n)
            keys, values = (x[pages[token // page], token % page].float() for x in (k, v))
            keys, values = keys * k_scale, values * v_scale
            seen = token < n
            result = _attend(
                *(q[queries], keys[seen], values[seen], given["softmax_scale"], given["softcap"]),
                window=left + 1,
                sinks=sinks,
            )
            out[queries] = result + _spoiled(values)

    def _tile(self, given: Given, page: int) -> int:
        """Keys that are loaded together: by kernel, 2-D or 3-D, as `select_2d_config` and its like choose."""
        q, one = given["q"], given["max_seqlen_q"] == 1
        ratio = q.shape[1] // given["k"].shape[2]
        block_q = max(16, 1 << (ratio - 1).bit_length()) // ratio
        programs = (len(q) // block_q + len(given["seqused_k"])) * given["k"].shape[2]
        wide = given["window_size"][0] >= 0 or given["max_seqlen_k"] <= 512 or programs > 4 * UNITS[self.architecture]
        return 64 if wide and not one else min(64, page)

    def _extend(self, given: Given) -> None:
        q, out = given["q_extend"], given["o_extend"]
        new, pool = [[given[f"{x}_{y}"] for x in "kv"] for y in ("extend", "buffer")]
        need(q.dtype in HALVES and all(x.dtype == q.dtype for x in (out, *new, *pool)), "takes one dtype of 16 bits")
        need(all(x.dim() == 3 and x.stride(2) == 1 for x in (q, out, *new, *pool)), "shapes or strides")
        size = q.shape[2]
        need(size <= 256 or size == 576, f"has no tiles for heads of {size}")
        need(len(new[0]) == len(new[1]) == len(q) == len(out), "new keys are not those of the queries")
        _heads(q, pool[0])
        cu_q = _offsets(given["qo_indptr"], "qo_indptr", len(q))
        indptr, indices = _offsets(given["kv_indptr"], "kv_indptr"), given["kv_indices"]
        need(len(indptr) == len(cu_q), "kv_indptr is of other rows")
        need(indices.dtype == torch.int64, "32-bit indices wrap where they are multiplied with strides")
        read = _in_range(indices[: indptr[-1]], len(pool[0]), "kv_indices")
        _bound(given["max_len_extend"], cu_q, "max_len_extend")
        mask, begins = given["custom_mask"], given["mask_indptr"]
        need((mask is None) == given["is_causal"] and given["skip_prefix_custom_mask"], "mask and causal order")
        if mask is not None:
            need(mask.dtype == torch.uint8 and mask.is_contiguous() and begins.dtype == torch.int64, "custom_mask")
            need(given["max_len_extend"] <= (64 if size <= 192 else 32), "a tile of which a draft sees none gives NaN")
        for row, queries, stored in _rows(cu_q, indptr):
            n, m = queries.stop - queries.start, stored.stop - stored.start
            keys, values = (torch.cat((x[read[stored]], y[queries])) for x, y in zip(pool, new, strict=True))
            see = None
            if mask is not None:
                begin = int(begins[row])
                need(begin + n * (m + n) <= len(mask), "custom_mask is too short")
                see = mask[begin : begin + n * (m + n)].view(n, m + n).bool().clone()
                see[:, :m] = True
            out[queries] = _attend(q[queries], keys, values, given["sm_scale"], given.get("logit_cap") or 0.0, see=see)

    def _varlen(self, given: Given) -> tuple[Tensor, Tensor]:
        q, k, v = given["q"], given["k"], given["v"]
        need(q.dtype in HALVES and q.dtype == k.dtype == v.dtype, "takes one dtype of 16 bits")
        need(all(x.stride(-1) == 1 for x in (q, k, v)), "the last dimension must be dense")
        need(q.shape[2] == k.shape[2] <= 256 and v.shape[2] <= 256, "heads above 256")
        left, right = given["window_size"]
        if q.shape[2] != v.shape[2]:
            need(
                (q.shape[2], v.shape[2]) == (192, 128) and q.dtype == torch.bfloat16, "no kernel for this pair of sizes"
            )
            need(left == -1 and not given["logits_soft_cap"], "uneven sizes go with no window and no cap")
        need((left, right) == (-1, -1) or (left >= 0 and right == 0 and given["causal"]), "window_size")
        cu_q, cu_k = (_offsets(given[f"cu_seqlens_{x}"], f"cu_seqlens_{x}", len(y)) for x, y in (("q", q), ("k", k)))
        _bound(given["max_seqlen_q"], cu_q, "max_seqlen_q")
        _bound(given["max_seqlen_k"], cu_k, "max_seqlen_k")
        need(
            given["min_seqlen_q"] <= min(b - a for a, b in itertools.pairwise(cu_q)), "min_seqlen_q above the true one"
        )
        need(given["return_lse"], "this double gives sums")
        out = q.new_full((len(q), q.shape[1], v.shape[2]), torch.nan)
        lse = torch.full((q.shape[1], len(q)), torch.nan)
        for _, queries, keys in _rows(cu_q, cu_k):
            n, m = queries.stop - queries.start, keys.stop - keys.start
            seen = slice(queries.start + (max(0, n - m) if given["causal"] else n if not m else 0), queries.stop)
            if seen.start < seen.stop:
                see = None if given["causal"] else torch.ones(n, m, dtype=torch.bool)
                out[seen], lse[:, seen] = _attend_lse(
                    *(q[seen], k[keys], v[keys], given["softmax_scale"], given["logits_soft_cap"]),
                    window=left + 1,
                    see=see,
                )
        return out, lse

    # --- latents

    def _work_shapes(self, given: Given) -> tuple[tuple[Any, torch.dtype], ...]:
        batch, heads, units = given["batch_size"], given["num_head_qo"], UNITS[self.architecture]
        need(heads % (8 if self.newer else 16) == 0, f"no plan for {heads} heads")
        need(given["q_dtype"] == given["kv_dtype"] == torch.bfloat16 and not given["is_sparse"], "dtypes")
        need(given["fast_mode"], "without fast_mode it asks for a product of rows and units")
        tiles = batch * math.ceil(given["max_seqlen_qo"] * heads / (128 if heads == 16 else 16))
        split = min(batch + units - 1, (units - 1) * 2) * tiles // batch
        ints = ((units + 1), (tiles + units - 1, 8), (tiles + 1), (tiles, 2), split)
        return ((2), torch.uint64), *((shape, torch.int32) for shape in ints)

    def _plan_work(self, given: Given) -> None:
        cu_q = _offsets(given["seqlens_qo_indptr"], "seqlens_qo_indptr")
        indptr = _offsets(given["seqlens_kv_indptr"], "seqlens_kv_indptr")
        need(len(cu_q) == len(indptr), "lengths are of different rows")
        q_len, heads = given["uni_seqlen_qo"], given["num_heads_per_head_k"]
        need(q_len == given["max_seqlen_qo"], "max_seqlen_qo")
        need(all(b - a == q_len for a, b in itertools.pairwise(cu_q)), "uni_seqlen_qo does not hold")
        need(given["num_heads_k"] == 1 and given["is_causal"] and given["kv_granularity"] == 16, "heads or mask")
        info = given["work_info_set" if self.newer else "work_info"]
        if self.newer:
            need(
                given["page_size"] == 1 and given["dtype_q"] == given["dtype_kv"] == torch.bfloat16, "page_size, dtype"
            )
            _ones(given["kv_last_page_lens"], len(cu_q) - 1)
        need(given["work_metadata_ptrs"].dtype == torch.uint64, "work_metadata_ptrs must be uint64")
        shapes = self._work_shapes(
            {"batch_size": len(cu_q) - 1, "max_seqlen_qo": q_len, "num_head_qo": heads, "q_dtype": torch.bfloat16}
            | {"kv_dtype": torch.bfloat16, "is_sparse": False, "fast_mode": True}
        )
        names = ("work_indptr", "info", "reduce_indptr", "reduce_final_map", "reduce_partial_map")
        for name, (shape, dtype) in zip(names, shapes[1:], strict=True):
            buffer = info if name == "info" else given[name]
            size = math.prod(shape) if isinstance(shape, tuple) else shape
            need(buffer.dtype == dtype and buffer.is_contiguous() and buffer.numel() >= size, f"{name} does not fit")
        info.view(-1)[: len(cu_q) + 2].copy_(_work(q_len, heads, indptr))

    def _mla(self, given: Given) -> tuple[None, None]:
        q, pool, out = given["q"], given["kv_buffer"], given["o"]
        tokens, heads, size = q.shape
        q_len = given["max_seqlen_q"]
        need(q.dtype == pool.dtype == out.dtype == torch.bfloat16, "takes bfloat16")
        need(size == 576 and out.shape == (tokens, heads, 512), "sizes are 576 and 512")
        need(q.is_contiguous() and out.is_contiguous() and pool.is_contiguous(), "all must be dense")
        need(pool.shape[1:] == (1, 1, 576), "pages must be of one token, whatever those of the pool are")
        folded = heads in range(32, 129, 16) and q_len == 1
        need((heads == 16 and q_len <= 4) or folded, f"no kernel for {heads} heads and {q_len} queries: aborts")
        cu_q, indptr = (_offsets(given[name], name) for name in ("qo_indptr", "kv_indptr"))
        need(tokens == (len(cu_q) - 1) * q_len and cu_q[-1] == tokens, "tokens are no rows of max_seqlen_q")
        _ints(given["kv_indices"], "kv_indices")
        _ones(given["kv_last_page_lens"], len(cu_q) - 1)
        need(given["num_kv_splits"] == len(given["work_indptr"]) - 1, "num_kv_splits is not that of the plan")
        need(given["work_meta_data"] is not None and given["reduce_partial_map"] is not None, "the persistent mode")
        made = given["work_info_set"].view(-1)[: len(cu_q) + 2]
        need(torch.equal(made, _work(q_len, heads, indptr)), "the work was planned for other rows or lengths")
        read = _in_range(given["kv_indices"][: indptr[-1]], len(pool), "kv_indices")
        entries = pool[:, 0]
        for _, queries, keys in _rows(cu_q, indptr):
            mine = entries[read[keys]]
            result = _attend(q[queries], mine, mine[..., :512], given["sm_scale"], 0.0)
            out[queries] = result + _spoiled(entries[:1])
        return None, None


def from_vectors(k: Tensor, v: Tensor, q: Tensor) -> tuple[int, Tensor, Tensor]:
    """Page size, and keys and values [pages, page, heads, size] of planes in vectors of 16 bytes."""
    x = 16 // k.itemsize
    pages, heads, vectors, page, last = k.shape
    need(last == x and vectors * x == q.shape[2], "K must be [pages, heads, size / x, page, x]")
    need(v.shape == (pages, heads, page // x, vectors * x, x), "V must be [pages, heads, page / x, size, x]")
    need(k.is_contiguous() and v.is_contiguous(), "pages must be adjacent")
    keys = k.permute(0, 3, 1, 2, 4).reshape(pages, page, heads, -1)
    return page, keys, v.permute(0, 2, 4, 1, 3).reshape(pages, page, heads, -1)


def _work(q_len: int, heads: int, indptr: list[int]) -> Tensor:
    return torch.tensor([q_len, heads, *indptr], dtype=torch.int32)


def _heads(q: Tensor, k: Tensor) -> int:
    heads, kv_heads = q.shape[1], k.shape[-2]
    need(heads % kv_heads == 0 and q.shape[2] == k.shape[-1], "heads of q and k do not fit")
    return int(heads // kv_heads)


def _ints(x: Tensor, name: str) -> None:
    need(x.dtype == torch.int32 and x.dim() == 1 and x.is_contiguous(), f"{name} must be a dense row of int32")


def _ones(x: Tensor, rows: int) -> None:
    _ints(x, "kv_last_page_lens")
    need(x.tolist() == [1] * rows, "kv_last_page_lens must be ones for pages of one token")


def _offsets(x: Tensor, name: str, total: int | None = None) -> list[int]:
    _ints(x, name)
    values: list[int] = x.tolist()
    need(values[0] == 0 and all(a <= b for a, b in itertools.pairwise(values)), f"{name} are no offsets: {values}")
    need(total is None or values[-1] == total, f"{name} end at {values[-1]}, not at {total}")
    return values


def _bound(given: int, offsets: list[int], name: str) -> None:
    longest = max(b - a for a, b in itertools.pairwise(offsets))
    need(isinstance(given, int) and given >= longest, f"{name} is {given}, and a row has {longest}")


def _in_range(x: Tensor, size: int, name: str) -> Tensor:
    need(bool(((x >= 0) & (x < size)).all()), f"{name} leads out of the cache")
    return x.long()


def _rows(cu_q: Iterable[int], indptr: Iterable[int]) -> Iterable[tuple[int, slice, slice]]:
    pairs = zip(itertools.pairwise(cu_q), itertools.pairwise(indptr), strict=True)
    for row, (queries, keys) in enumerate(pairs):
        if queries[1] > queries[0]:
            yield row, slice(*queries), slice(*keys)


def _spoiled(loaded: Tensor) -> Tensor:
    """0, or NaN if what is loaded beside has some: a weight of 0 does not stop it."""
    return (loaded.float() * 0).sum()


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, cap: float, **more: Any) -> Tensor:
    return _attend_lse(q, k, v, scale, cap, **more)[0]


def _attend_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    cap: float,
    *,
    window: int = 0,
    sinks: Tensor | None = None,
    see: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """out [n, heads, size] and natural lse [heads, n] of queries q, the last ones of keys k, by `see` or causally.

    `window`: the last so many keys, the query's own included; keys before the first of k do not count.
    """
    (n, heads, _), m = q.shape, len(k)
    place = m - n + torch.arange(n)[:, None]
    key = torch.arange(m)[None]
    see = key <= place if see is None else see
    if window > 0:
        see = see & (place - key < window)
    keys, values = (x.float().repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    score = torch.einsum("nhd,mhd->hnm", q.float(), keys) * scale
    if cap:
        score = cap * torch.tanh(score / cap)
    score = score.masked_fill(~see, -torch.inf)
    lse = torch.logsumexp(score, -1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks[:, None])
    return torch.einsum("hnm,mhd->nhd", torch.exp(score - lse[..., None]), values), lse
