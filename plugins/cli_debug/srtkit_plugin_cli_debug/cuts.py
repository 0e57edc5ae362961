"""Smaller dumps from a dump: fewer query tokens, less context, a shorter window, fewer heads. Pure; runs nothing.

What is cut is a step of its own: the reference's answer to it differs from the whole's, and is computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from srtkit_plugin_attention_shadow.dump import Dump, used_pages


def queries(dump: Dump, first: int, stop: int) -> Dump:
    """Of a single row the query tokens [first, stop); those before are history, those behind have not come yet."""
    n = int(dump.n_query[0])
    kept = slice(first, stop)
    picked = {name: None if one is None else one[kept] for name, one in (("k", dump.k), ("v", dump.v))}
    leading = dump.meta.leading
    return used_pages(
        replace(
            dump,
            meta=replace(dump.meta, q_len=stop - first if leading else dump.meta.q_len, findings=()),
            q=dump.q[kept],
            out=dump.out[kept],
            wanted=dump.wanted[kept],
            positions=dump.positions[kept],
            slot_mapping=dump.slot_mapping[kept],
            n_query=torch.tensor([stop - first], dtype=torch.int32),
            context=dump.context - (n - stop),
            **picked,  # type: ignore[arg-type]
        )
    )


def without_front(dump: Dump, pages: int) -> Dump:
    """Of a single row without its first pages."""
    tokens = pages * dump.meta.layout.page_tokens
    return used_pages(
        replace(
            dump,
            page_table=dump.page_table[:, pages:],
            context=dump.context - tokens,
            positions=dump.positions - tokens,
            groups=None,
        )
    )


def without_tail(dump: Dump, tokens: int) -> Dump:
    """Of a single row as if its last tokens had not come: the queries stand where earlier tokens stand, unstored."""
    page = dump.meta.layout.page_tokens
    positions = dump.positions - tokens
    slots = dump.page_table[0, (positions // page).long()] * page + positions % page
    return used_pages(
        replace(dump, context=dump.context - tokens, positions=positions, slot_mapping=slots, k=None, v=None)
    )


def windowed(dump: Dump, window: int) -> Dump:
    """With another window."""
    return replace(dump, meta=replace(dump.meta, spec=replace(dump.meta.spec, window=window)))


def heads(dump: Dump, kv_heads: Sequence[int], members: Sequence[int]) -> Dump:
    """With these KV heads, and of each one's query heads those with these numbers. For the layout "nhd/1"."""
    spec, layout = dump.meta.spec, dump.meta.layout
    ratio = spec.q_heads // spec.kv_heads
    chosen = torch.tensor([head * ratio + member for head in kv_heads for member in members])
    kv = torch.tensor(list(kv_heads))
    planes = tuple(replace(one, shape=(one.shape[0], len(kv), *one.shape[2:])) for one in layout.planes)
    fewer = replace(spec, q_heads=len(chosen), kv_heads=len(kv))
    return replace(
        dump,
        meta=replace(dump.meta, spec=fewer, layout=replace(layout, planes=planes), findings=()),
        q=dump.q[:, chosen],
        out=dump.out[:, chosen],
        wanted=dump.wanted[:, chosen],
        k=None if dump.k is None else dump.k[:, kv],
        v=None if dump.v is None else dump.v[:, kv],
        planes={name: of_heads(plane, kv) for name, plane in dump.planes.items()},
        sinks=None if dump.sinks is None else dump.sinks[chosen],
        scales={name: scale[kv] if scale.numel() > 1 else scale for name, scale in dump.scales.items()},
    )


def of_heads(plane: Tensor, kv_heads: Tensor) -> Tensor:
    """A plane [pages, tokens, kv_heads, size] of these KV heads."""
    raw = plane.view(torch.uint8) if plane.dtype.itemsize == 1 else plane  # indexing does not know fp8
    return raw[:, :, kv_heads].contiguous().view(plane.dtype)
