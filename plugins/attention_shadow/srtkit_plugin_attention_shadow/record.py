"""From a step in memory to a dump: which rows, and copies of what they read. Knows no file and no judgement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from srtkit.spec.attention import Batch, GroupView, LayerGroup, LayerHandle, Rows
from srtkit.spec.kv import KVLayout
from srtkit_plugin_attention_shadow.compare import Finding
from srtkit_plugin_attention_shadow.dump import Dump, Meta, Origin, only_rows
from srtkit_plugin_attention_shadow.origin import device_name, versions


@dataclass(frozen=True)
class Circumstances:
    """What holds for every step of a layer group."""

    group: LayerGroup
    layout: KVLayout
    live: Origin
    reference: Origin
    platform: Origin
    tolerance: float
    largest: int


@dataclass(frozen=True)
class Call:
    """One call of `attend`: q and both results, [T, heads, size], and the k and v that were stored before it."""

    rows: Rows
    q: Tensor
    out: Tensor
    wanted: Tensor
    stored: tuple[Tensor, Tensor] | None = None


def record(
    where: Circumstances,
    step: tuple[Batch, GroupView],
    layer: LayerHandle,
    call: Call,
    found: Sequence[Finding],
    number: int,
) -> Dump:
    """A dump of the rows that fit into `where.largest` bytes, those with a finding first. Copies to the CPU."""
    batch, view = step
    k, v = call.stored or (None, None)
    pool = next(iter(layer.planes.values())).shape[0]
    meta = Meta(
        spec=where.group.spec,
        layout=where.layout,
        group=where.group.name,
        layer=layer.index,
        step=number,
        leading=batch.leading,
        q_len=batch.q_len,
        covered=call.rows.value,
        features=tuple(sorted(batch.features)),
        live=where.live,
        reference=where.reference,
        platform=where.platform,
        device=device_name(call.q.device),
        versions=versions(),
        tolerance=where.tolerance,
        findings=tuple(found),
    )
    groups = batch.groups
    whole = Dump(
        meta,
        q=call.q.cpu(),
        out=call.out.cpu(),
        wanted=call.wanted.cpu(),
        planes=dict(layer.planes),  # where they stand; only_rows copies the pages that are read
        page_ids=torch.arange(pool, dtype=torch.int32),
        page_table=torch.from_numpy(view.host_pages.copy()).int(),
        slot_mapping=view.slot_mapping.cpu(),
        positions=batch.positions.cpu(),
        n_query=torch.from_numpy(batch.host_q.copy()).int(),
        context=torch.from_numpy(batch.host_context.copy()).int(),
        slots=batch.slots.cpu(),
        k=None if k is None else k.cpu(),
        v=None if v is None else v.cpu(),
        sinks=None if layer.sinks is None else layer.sinks.cpu(),
        scales={name: scale.cpu() for name, scale in (layer.scales or {}).items()},
        groups=None
        if groups is None
        else torch.tensor([x.tolist() for x in (groups.first_row, groups.members, groups.pages)], dtype=torch.int32),
        tree=None if batch.tree is None else batch.tree.bits.cpu(),
    )
    rows = _rows_that_fit(whole, found, where.largest)
    dump = only_rows(whole, rows)
    planes = {name: plane.cpu() for name, plane in dump.planes.items()}
    return replace(dump, planes=planes, meta=replace(dump.meta, rows_left_out=whole.rows - len(rows)))


def _rows_that_fit(dump: Dump, found: Sequence[Finding], largest: int) -> list[int]:
    """Rows, ascending; at least the one with the worst finding. Shared pages count for each row."""
    page = dump.meta.layout.page_bytes
    first = dict.fromkeys(one.row for one in found)
    kept: list[int] = []
    size = 0
    for row in [*first, *(row for row in range(dump.rows) if row not in first)]:
        tokens = int(dump.n_query[row]) * 3 * dump.q[0].numel() * dump.q.element_size()
        size += -(-int(dump.context[row]) // dump.meta.layout.page_tokens) * page + tokens
        if kept and size > largest:
            break
        kept.append(row)
    return sorted(kept)
