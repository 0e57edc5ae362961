"""The source of plugins with one planted fault each: `torch`'s attention, wrong in a way that kernels are wrong.

A test installs it under the fault's name, by which the class is chosen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

import srtkit_plugin_attention_torch as torch_plugin
from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionDescriptor,
    AttentionPlan,
    Batch,
    GroupView,
    LayerHandle,
    Rows,
)
from srtkit.spec.hookspecs import hookimpl
from srtkit_plugin_attention_torch.backend import TorchAttention


class PageSwapped(TorchAttention):
    """Reads a row's first page in place of its second."""

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        pages = view.host_pages.copy()
        for row in np.flatnonzero(batch.host_context > view.page_tokens):
            pages[row, 1] = pages[row, 0]
        super().fill(plan, batch, replace(view, host_pages=pages))


class WindowOff(TorchAttention):
    """Sees one token more than the window."""

    def __init__(self, build: AttentionBuild) -> None:
        spec = build.group.spec
        super().__init__(replace(build, group=replace(build.group, spec=replace(spec, window=spec.window + 1))))


class TailRead(TorchAttention):
    """Reads decode rows' last page to its end."""

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        whole = -(-batch.host_context // view.page_tokens) * view.page_tokens
        context = batch.host_context.copy()
        context[batch.host_q == 1] = whole[batch.host_q == 1]
        super().fill(plan, replace(batch, host_context=context), view)


class WrongHead(TorchAttention):
    """Query head h reads KV head h % kv_heads."""

    def attend(
        self,
        plan: AttentionPlan,
        layer: LayerHandle,
        q: Tensor,
        out: Tensor,
        *,
        rows: Rows = Rows.ALL,
        fresh: tuple[Tensor, Tensor] | None = None,
        lse: Tensor | None = None,
    ) -> None:
        kv_heads = layer.planes["k"].shape[2]
        ratio = q.shape[1] // kv_heads
        heads = torch.arange(q.shape[1])
        place = heads % kv_heads * ratio + heads // kv_heads
        asked, given = torch.empty_like(q), torch.empty_like(out)
        asked[:, place] = q
        super().attend(plan, layer, asked, given, rows=rows, fresh=fresh)
        out.copy_(given[:, place])


class StalePlan(TorchAttention):
    """A plan filled again for as many rows and tokens keeps its lengths."""

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        kept = vars(plan).setdefault("lengths", {})
        context = kept.setdefault((batch.rows, batch.tokens), batch.host_context)
        super().fill(plan, replace(batch, host_context=context), view)


FAULTS: dict[str, type[TorchAttention]] = {
    "page-swapped": PageSwapped,
    "window-off": WindowOff,
    "tail-read": TailRead,
    "wrong-head": WrongHead,
    "stale-plan": StalePlan,
}
NAME = __name__.removeprefix("faulty_").replace("_", "-")


def build(request: AttentionBuild) -> AttentionBackend:
    """The faulty backend."""
    return FAULTS[NAME](request)


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers what `torch` does."""
    return replace(torch_plugin.srtkit_attention(), build=build)
