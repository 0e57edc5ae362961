"""What all kinds of layers share: a plan with its buffers, the calls that a step consists of, views of planes.

Leading rows are one call and the rest another; where the keys of both stand is written once a step, for all layers. Of
aiter's kernels those are called here that serve two kinds of layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from srtkit.spec.attention import AttentionPlan, AttentionSpec, Batch, GroupView, LayerHandle
from srtkit.spec.errors import EngineError
from srtkit.spec.platform import Platform
from srtkit_plugin_attention_aiter import PART
from srtkit_plugin_attention_aiter.indices import (
    LIST_PAD,
    TABLE_PAD,
    KvRows,
    draft_masks,
    list_units,
    tabulate,
    tabulate_drafts,
)
from srtkit_plugin_attention_aiter.library import Library
from srtkit_plugin_attention_aiter.table import Kernel, Routes

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
NOTHING: Shapes = MappingProxyType({})


@dataclass
class Call:
    """Rows of the step that one kernel takes: the leading ones, or the rest. `tokens` of the step are theirs.

    `rows.cu_q` counts from the first of these tokens; `q_len` is the longest query, `keys` are all rows' together at
    most; `slots` int32 those of the tokens; `bits` the tree mask of leading rows. Where the kernel finds keys: `lists`
    (indptr, indices, last), `table` (table, lengths), `mask` of drafts (mask, mask_indptr), as the builders write them.
    """

    leading: bool
    tokens: slice
    slots: Tensor
    rows: KvRows
    q_len: int
    keys: int
    kernel: Kernel
    bits: Tensor | None = None
    lists: tuple[Tensor, Tensor, Tensor] | None = None
    table: tuple[Tensor, Tensor] | None = None
    mask: tuple[Tensor, Tensor] | None = None


class AiterPlan(AttentionPlan):
    """Buffers by name, and the step that `fill` put in as calls."""

    def __init__(
        self, platform: Platform, rows: int, *, units: int = 0, pages: int = 0, more: Shapes = NOTHING
    ) -> None:
        """Room for leading rows: a list of `units` a row, a table of `pages` a row, `more`. Raises `OutOfMemory`."""
        sizes = {"indptr": rows + 1, "indices": rows * units + LIST_PAD, "last": rows}
        sizes["table"] = rows * (pages + TABLE_PAD)
        shapes = {name: ((size,), torch.int32) for name, size in sizes.items()}
        shapes["lengths"] = ((rows,), torch.int64)
        self.buffers = {name: platform.allocate("workspace", *one) for name, one in {**shapes, **more}.items()}
        self.calls: list[Call] = []
        self._step: tuple[Batch, GroupView] | None = None

    @property
    def step(self) -> tuple[Batch, GroupView]:
        """What was filled in last."""
        assert self._step is not None, "attend or store before fill"
        return self._step

    def divide(self, routes: Routes, batch: Batch, view: GroupView) -> None:
        """Note a step, and decide its calls."""
        n, begin, page = batch.leading, batch.leading * batch.q_len, view.page_tokens
        self._step, self.calls = (batch, view), []
        if n:
            tokens = slice(begin)
            bits = batch.tree.bits.contiguous() if batch.tree is not None and batch.q_len > 1 else None
            rows = KvRows(batch.cu_q[: n + 1], batch.context[:n], view.page_table[:n], page)
            kernel = routes.leading(batch.q_len, tree=bits is not None)
            keys = n * rows.units(1)
            self.calls += [Call(True, tokens, view.slot_mapping[tokens], rows, batch.q_len, keys, kernel, bits)]
        if begin < batch.tokens:
            tokens, lengths = slice(begin, batch.tokens), batch.host_context[n:]
            table = view.page_table[n:, : -(-int(lengths.max()) // page)]
            rows = KvRows(torch.sub(batch.cu_q[n:], begin), batch.context[n:], table, page)
            longest, keys = int(batch.host_q[n:].max()), int(lengths.sum())
            self.calls += [Call(False, tokens, view.slot_mapping[tokens], rows, longest, keys, routes.rest)]

    def list_keys(self, call: Call, unit: int, *, stored: bool = False) -> None:
        """The units of the call's rows in one list; `stored`: of keys before this step's own, for the extend kernel.

        That multiplies entries with strides as they come: they have 64 bits, for planes of more than 2 ** 31 elements.
        """
        count = len(call.rows)
        size = min(count * call.rows.units(unit), call.keys // unit + count) + LIST_PAD
        name, dtype = ("stored", torch.int64) if stored else ("indices", torch.int32)
        indptr, last = self._room(call, "indptr", count + 1), self._room(call, "last", count)
        call.lists = indptr, self._room(call, name, size, dtype=dtype), last
        list_units(call.rows, *call.lists, unit=unit, stored=stored)

    def tabulate_keys(self, call: Call, window: int = 0) -> None:
        """The pages of each of the call's rows."""
        count, columns = len(call.rows), call.rows.units(call.rows.page) + TABLE_PAD
        table = self._room(call, "table", count, columns)
        call.table = table, self._room(call, "lengths", count, dtype=torch.int64)
        tabulate(call.rows, *call.table, window=window)

    def mask_drafts(self, call: Call) -> None:
        """What drafts of a tree see of each other, for the extend kernel. Without a tree it needs no mask."""
        if call.bits is not None:
            count, q_len, _ = call.bits.shape
            mask = self._room(call, "mask", count * q_len * call.rows.units(1), dtype=torch.uint8)
            call.mask = mask, self._room(call, "mask_indptr", count, dtype=torch.int64)
            draft_masks(call.rows, call.bits, *call.mask)

    def tabulate_drafts(self, call: Call, window: int) -> None:
        """Make each draft of a tree a row of one query, over pages of one token: the slots that are listed for it."""
        assert call.bits is not None
        drafts, keys = len(call.slots), call.rows.units(1)
        table = self._room(call, "drafts", drafts, min(keys, window or keys) + TABLE_PAD)
        lengths = self._room(call, "draft_lengths", drafts, dtype=torch.int64)
        tabulate_drafts(call.rows, call.bits, table, lengths, window=window)
        cu_q = torch.arange(drafts + 1, out=self._room(call, "draft_cu_q", drafts + 1))
        call.kernel, call.q_len, call.table = "unified", 1, (table, lengths)
        call.rows = KvRows(cu_q, lengths, table, page=1)

    def close(self) -> None:
        """Free the buffers."""
        self.buffers, self.calls, self._step = {}, [], None

    def _room(self, call: Call, name: str, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """A tensor to write to. Leading rows may be recorded: theirs stays where it is for all steps of a graph's key.

        The first tree makes the room that trees take, which depends on their size. Other rows get what is free.
        """
        size, kept = math.prod(shape), self.buffers.get(name) if call.leading else None
        if kept is None or len(kept) < size:
            kept = torch.empty(size, dtype=dtype, device=call.slots.device)
            if call.leading:
                self.buffers[name] = kept
        return kept[:size].view(shape)


def as_units(plane: Tensor, unit: int) -> Tensor:
    """A plane [pages, page tokens, *entry] seen in pages of `unit` tokens. Raises `EngineError` for pages apart."""
    if not plane.is_contiguous():
        raise EngineError(PART, "the pages of a layer are not adjacent in memory, as its layout says they must be")
    return plane.view(-1, unit, *plane.shape[2:])


def slots_of(layer: LayerHandle, name: str) -> Tensor:
    """A plane [slots, *entry]."""
    return as_units(layer.planes[name], 1)[:, 0]


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
    library: Library, call: Call, planes: tuple[Tensor, Tensor], q: Tensor, out: Tensor, spec: AttentionSpec
) -> None:
    """Attend by `extend_attention_fwd`, causally or by the mask of drafts: what is stored, then this step's own.

    `planes` [slots, KV heads, size] of keys and values, q and out the call's tokens.
    """
    assert call.lists is not None
    mask, mask_indptr = call.mask or (None, None)
    k, v = (plane.index_select(0, call.slots) for plane in planes)
    library.extend(
        q_extend=q,
        k_extend=k,
        v_extend=v,
        o_extend=out,
        k_buffer=planes[0],
        v_buffer=planes[1],
        qo_indptr=call.rows.cu_q,
        kv_indptr=call.lists[0],
        kv_indices=call.lists[1],
        custom_mask=mask,
        is_causal=mask is None,
        mask_indptr=mask_indptr,
        max_len_extend=call.q_len,
        sm_scale=spec.scale,
        logit_cap=spec.soft_cap,
        skip_prefix_custom_mask=True,
    )


def last_dense(x: Tensor) -> Tensor:
    """x with elements of the last dimension next to each other."""
    return x if x.stride(-1) == 1 else x.contiguous()
