"""What all kinds of layers share: a plan with its buffers, the calls that a step consists of, views of planes.

Leading rows are one call and the rest another. Of aiter's kernels those are called here that serve two kinds of layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBuild,
    AttentionPlan,
    AttentionSpec,
    Batch,
    GroupView,
    LayerHandle,
    Rows,
    check_spec,
)
from srtkit.spec.errors import EngineError
from srtkit.spec.facts import Limits
from srtkit.spec.platform import Platform
from srtkit_plugin_attention_aiter import PART, declared
from srtkit_plugin_attention_aiter.indices import LIST_PAD, TABLE_PAD, KvRows, draft_masks, list_units, tabulate
from srtkit_plugin_attention_aiter.library import Library
from srtkit_plugin_attention_aiter.table import FP8, PAGE_SIZES, Kernel, Routes, why_not

Lists = tuple[Tensor, Tensor, Tensor]
"""indptr, indices, last: as `list_units` writes them."""


@dataclass
class Call:
    """Tokens [begin, end) of the step, the rows that they are, and the kernel that takes them.

    `rows.cu_q` counts from `begin`; `q_len` is the longest query; `slots` int32 those of the tokens; `bits` the tree
    mask of leading rows. `lists` (indptr, indices, last) or `table` (table, lengths) is where the kernel finds keys.
    """

    begin: int
    end: int
    rows: KvRows
    kernel: Kernel
    q_len: int
    slots: Tensor
    bits: Tensor | None = None
    lists: Lists | None = None
    table: tuple[Tensor, Tensor] | None = None


class AiterPlan(AttentionPlan):
    """Buffers at fixed addresses by name, and the step that `fill` put in."""

    def __init__(self, platform: Platform, limits: Limits, **shapes: tuple[tuple[int, ...], torch.dtype]) -> None:
        """`cu_rest` int32 [rows + 1], and those of `shapes`. Raises `OutOfMemory`."""
        shapes["cu_rest"] = ((limits.max_rows + 1,), torch.int32)
        self.buffers = {name: platform.allocate("workspace", *shape) for name, shape in shapes.items()}
        self.batch: Batch | None = None
        self.view: GroupView | None = None
        self.leading: Call | None = None
        self.rest: Call | None = None

    @property
    def step(self) -> tuple[Batch, GroupView]:
        """What was filled in last."""
        assert self.batch is not None and self.view is not None, "attend or store before fill"
        return self.batch, self.view

    def calls(self, rows: Rows) -> Iterator[Call]:
        """Those that cover `rows`, in order."""
        if self.leading is not None and rows is not Rows.REST:
            yield self.leading
        if self.rest is not None and rows is not Rows.LEADING:
            yield self.rest

    def take(self, batch: Batch, view: GroupView) -> int:
        """Note a step; the pages of its longest row that is not leading, at most."""
        self.batch, self.view = batch, view
        return -(-int(batch.host_context[batch.leading :].max(initial=1)) // view.page_tokens)

    def divide(self, routes: Routes, width: int) -> None:
        """Decide the calls; rows that are not leading have at most `width` pages."""
        batch, view = self.step
        n, begin = batch.leading, batch.leading * batch.q_len
        table, page = view.page_table, view.page_tokens
        self.leading = self.rest = None
        if n:
            bits = batch.tree.bits if batch.tree is not None and batch.q_len > 1 else None
            rows = KvRows(batch.cu_q[: n + 1], batch.context[:n], table[:n], page)
            kernel = routes.leading(batch.q_len, tree=bits is not None)
            self.leading = Call(0, begin, rows, kernel, batch.q_len, view.slot_mapping[:begin], bits)
        if begin < batch.tokens:
            cu_q = torch.sub(batch.cu_q[n:], begin, out=self.buffers["cu_rest"][: batch.rows - n + 1])
            rows = KvRows(cu_q, batch.context[n:], table[n:, :width], page)
            longest = int(batch.host_q[n:].max())
            self.rest = Call(begin, batch.tokens, rows, routes.rest, longest, view.slot_mapping[begin : batch.tokens])

    def list_leading(self, call: Call, unit: int) -> Lists:
        """The units of leading rows, in the plan's own list."""
        count, buffers = len(call.rows), self.buffers
        call.lists = buffers["indptr"][: count + 1], buffers["indices"], buffers["last"][:count]
        list_units(call.rows, *call.lists, unit=unit)
        return call.lists

    def tabulate(self, call: Call, window: int = 0) -> None:
        """The pages of a call's rows, in their part of the plan's own table."""
        first = 0 if call is self.leading else self.step[0].leading
        part, columns = slice(first, first + len(call.rows)), call.rows.units(call.rows.page) + TABLE_PAD
        call.table = self.buffers["table"][part, :columns], self.buffers["lengths"][part]
        tabulate(call.rows, *call.table, window=window)

    def close(self) -> None:
        """Free the buffers."""
        self.buffers = {}
        self.batch = self.view = self.leading = self.rest = None


def list_shapes(rows: int, units: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Buffers for the list of so many rows of at most so many units."""
    sizes = {"indptr": rows + 1, "indices": rows * units + LIST_PAD, "last": rows}
    return {name: ((size,), torch.int32) for name, size in sizes.items()}


def table_shapes(rows: int, units: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Buffers for the table of so many rows."""
    return {"table": ((rows, units + TABLE_PAD), torch.int32), "lengths": ((rows,), torch.int64)}


def refusal(build: AttentionBuild, library: Library, architecture: str) -> str:
    """Why spec or layout are not among those declared, or this version of aiter lacks the kernels; empty if neither."""
    spec, layout = build.group.spec, build.layout
    if reason := check_spec(PART, spec, declared(architecture)) or why_not(spec, newer=library.newer):
        return reason
    names = {plane.name for plane in layout.planes}
    if names != ({"k", "v"} if spec.mla is None else {"latent_rope"}) or layout.page_tokens not in PAGE_SIZES:
        return f"does not read the layout {layout.name} with pages of {layout.page_tokens}"
    if spec.kv_dtype not in (spec.dtype, FP8[architecture]):
        return f"keeps KV in the model's {spec.dtype}, not in {spec.kv_dtype}"
    return ""


def as_units(plane: Tensor, unit: int) -> Tensor:
    """A plane [pages, page tokens, *entry] seen in pages of `unit` tokens. Raises `EngineError` for pages apart."""
    if not plane.is_contiguous():
        raise EngineError(PART, "the pages of a layer are not adjacent in memory, as its layout says they must be")
    return plane.view(-1, unit, *plane.shape[2:])


def slots_of(layer: LayerHandle, name: str) -> Tensor:
    """A plane [slots, *entry]."""
    return as_units(layer.planes[name], 1)[:, 0]


def list_rest(call: Call, keys: int, unit: int) -> None:
    """The units of rows with so many keys together. Their step is never recorded, so the list may be anywhere."""
    count = len(call.rows)
    sizes = count + 1, keys // unit + count + LIST_PAD, count
    indptr, indices, last = (torch.empty(size, dtype=torch.int32, device=call.slots.device) for size in sizes)
    call.lists = indptr, indices, last
    list_units(call.rows, *call.lists, unit=unit)


def prefill(
    library: Library,
    call: Call,
    planes: tuple[Tensor, Tensor],
    q: Tensor,
    out: Tensor,
    spec: AttentionSpec,
    **pages: Tensor,
) -> None:
    """Attend by `mha_batch_prefill_func`: rows of any length, over the call's list of units of `planes`.

    `pages`: kv_last_page_lens, where a unit is more than a slot.
    """
    assert call.lists is not None
    library.prefill(
        q=q,
        k=planes[0],
        v=planes[1],
        cu_seqlens_q=call.rows.cu_q,
        kv_indptr=call.lists[0],
        kv_page_indices=call.lists[1],
        max_seqlen_q=call.q_len,
        max_seqlen_k=call.rows.units(1),
        softmax_scale=spec.scale,
        logits_soft_cap=spec.soft_cap,
        causal=True,
        out=out,
        **pages,
    )


def extend(
    library: Library, call: Call, planes: tuple[Tensor, Tensor], q: Tensor, out: Tensor, **scores: float
) -> None:
    """Attend by `extend_attention_fwd`, causally or by the call's tree mask, which is read when the step runs.

    `planes` [slots, KV heads, size] of keys and values, q and out the call's tokens. `scores`: sm_scale, logit_cap.
    """
    rows, bits = call.rows, call.bits
    count, room, ints = len(rows), rows.units(1), {"dtype": torch.int32, "device": q.device}
    indptr = torch.empty(count + 1, **ints)  # type: ignore[call-overload]
    # It multiplies entries with strides as they come: 64 bits for planes of more than 2 ** 31 elements.
    indices = torch.empty(count * room + LIST_PAD, dtype=torch.int64, device=q.device)
    list_units(rows, indptr, indices, None, unit=1, stored=True)
    mask = mask_indptr = None
    if bits is not None:
        mask = torch.empty(count * bits.shape[1] * room, dtype=torch.uint8, device=q.device)
        mask_indptr = torch.empty(count, dtype=torch.int64, device=q.device)
        draft_masks(rows, bits.contiguous(), mask, mask_indptr)
    new = [plane.index_select(0, call.slots) for plane in planes]
    library.extend(
        q_extend=q,
        k_extend=new[0],
        v_extend=new[1],
        o_extend=out,
        k_buffer=planes[0],
        v_buffer=planes[1],
        qo_indptr=rows.cu_q,
        kv_indptr=indptr,
        kv_indices=indices,
        custom_mask=mask,
        is_causal=bits is None,
        mask_indptr=mask_indptr,
        max_len_extend=call.q_len,
        skip_prefix_custom_mask=True,
        **scores,
    )


def last_dense(x: Tensor) -> Tensor:
    """x with elements of the last dimension next to each other."""
    return x if x.stride(-1) == 1 else x.contiguous()
