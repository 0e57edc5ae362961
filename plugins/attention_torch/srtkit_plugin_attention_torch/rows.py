"""The reference path: one row after the other, as attention is defined. Correct for every feature.

Reads stored entries (never `fresh`), so it also checks that storing worked.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.attention import AttentionSpec, Batch, GroupView, Rows
from srtkit_plugin_attention_torch import reference
from srtkit_plugin_attention_torch.entries import Entries


class ReferenceStep:
    """One step's rows. Holds the batch and the view until the next fill."""

    def __init__(self, batch: Batch, view: GroupView) -> None:
        self.batch = batch
        self.view = view
        ends = np.cumsum(batch.host_q)
        self._tokens = list(zip((ends - batch.host_q).tolist(), ends.tolist(), strict=True))

    def slots(self, row: int, start: int, stop: int, device: torch.device) -> Tensor:
        """Slots of the row's stored tokens [start, stop), int64."""
        size = self.view.page_tokens
        positions = torch.arange(start, stop)
        pages = torch.from_numpy(self.view.host_pages[row].astype(np.int64))
        return (pages[positions // size] * size + positions % size).to(device)

    def attend(
        self, spec: AttentionSpec, entries: Entries, q: Tensor, out: Tensor, rows: Rows, lse: Tensor | None
    ) -> None:
        """Attend the tokens of `rows`; writes `out` and `lse` there."""
        batch = self.batch
        sinks = entries.layer.sinks if spec.sinks else None
        assert not spec.sinks or sinks is not None, "the layer came without its sinks"
        begin = batch.leading if rows is Rows.REST else 0
        end = batch.leading if rows is Rows.LEADING else batch.rows
        for row in range(begin, end):
            first, last = self._tokens[row]
            if first == last:
                continue
            context = int(batch.host_context[row])
            oldest = max(0, context - (last - first) - spec.window + 1) if spec.window else 0
            k, v = entries.keys_and_values(self.slots(row, oldest, context, q.device))
            row_out, row_lse = reference.attention(
                q[first:last].float(),
                k,
                v,
                self._visible(spec, row, context)[:, oldest:],
                spec.scale,
                spec.soft_cap,
                sinks,
            )
            out[first:last] = row_out.to(out.dtype)
            if lse is not None:
                lse[first:last] = row_lse

    def _visible(self, spec: AttentionSpec, row: int, context: int) -> Tensor:
        """bool [n_query, context]."""
        batch = self.batch
        first, last = self._tokens[row]
        if batch.tree is not None and row < batch.leading:
            positions = batch.positions[first:last]
            return reference.tree_visible(batch.tree.bits[row, : last - first], positions, context, spec.window)
        return reference.visible(last - first, context, spec.window, spec.causal, batch.cu_q.device)
