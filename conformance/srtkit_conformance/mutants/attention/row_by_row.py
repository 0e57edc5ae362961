"""Attention one row after the other, in float32, over entries that the inner backend gathers. Right, and in parts.

A legal implementation of every feature; faults override one of its steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.attention import Batch, LayerHandle, Rows
from srtkit_conformance.mutants.attention.wrap import Call, Wrapped, WrappedPlan


class RowByRow(Wrapped):
    """`tile` keys at a time, merged by log-sum-exp; 0: all at once. `whole_pages`: page tails are read, and masked."""

    tile = 0
    whole_pages = False

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """Each row by itself."""
        batch, _ = plan.filled
        ends = batch.host_q.cumsum().tolist()
        begin = batch.leading if how.rows is Rows.REST else 0
        end = batch.leading if how.rows is Rows.LEADING else batch.rows
        for row in range(begin, end):
            n_query, context = int(batch.host_q[row]), int(batch.host_context[row])
            tokens = slice(ends[row] - n_query, ends[row])
            see = self.visible(batch, row, tokens, context)
            first = int(see.any(0).nonzero()[0])  # pages before the window may have been freed
            k, v = self.keys(plan, layer, row, first, self.last_read(row, context))
            see = torch.nn.functional.pad(see, (0, first + len(k) - context))[:, first:]
            row_out, row_lse = self.attend_row(how.q[tokens], k, v, see, layer.sinks if self.spec.sinks else None)
            how.out[tokens] = row_out.to(how.out.dtype)
            if how.lse is not None:
                how.lse[tokens] = row_lse

    def last_read(self, row: int, context: int) -> int:
        """Where reading a row's tokens ends."""
        return -(-context // self.page) * self.page if self.whole_pages else context

    def keys(self, plan: WrappedPlan, layer: LayerHandle, row: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Tokens [start, stop) of a row, float32: [n, kv_heads, head_dim] and [n, kv_heads, v_head_dim]."""
        dense, mla, n = self.inner.parts().dense, self.spec.mla, stop - start
        assert dense is not None
        device = next(iter(layer.planes.values())).device
        if mla is None:
            shapes = (n, self.spec.kv_heads, self.spec.head_dim), (n, self.spec.kv_heads, self.spec.v_head_dim)
        else:
            shapes = (n, 1, mla.rank), (n, 1, mla.rope)
        first, second = (torch.empty(shape, device=device) for shape in shapes)
        flat = (first, second) if mla is None else (first[:, 0], second[:, 0])
        dense.gather(plan.inner, self.handle(layer), row, start, stop, flat)
        return (first, second) if mla is None else (torch.cat((first, second), -1), first)

    def visible(self, batch: Batch, row: int, tokens: slice, context: int) -> Tensor:
        """bool [n_query, context]."""
        n_query = tokens.stop - tokens.start
        key = torch.arange(context, device=batch.cu_q.device)
        query = key[context - n_query :, None]
        see = (key <= query) if self.spec.causal else torch.ones_like(key <= query)
        if batch.tree is not None and row < batch.leading:
            bits = batch.tree.bits[row, :n_query, :, None] >> torch.arange(32, device=key.device) & 1
            see[:, : context - n_query] = True
            see[:, context - n_query :] = bits.flatten(1)[:, :n_query].bool()
            query = batch.positions[tokens, None]
            key = torch.cat((key[: context - n_query], query[:, 0]))
        return see & (query - key < self.spec.window) if self.spec.window else see

    def attend_row(self, q: Tensor, k: Tensor, v: Tensor, see: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        """q [n, heads, d] over k, v [m, kv_heads, …], see bool [n, m] → out and lse, float32."""
        scores = self.mask(self.scores(q.float(), k), see)
        v = v[:, self.kv_heads(q.shape[1])]
        step = self.tile or len(k)
        sums = [torch.logsumexp(part, -1) for part in torch.split(scores, step, -1)]
        if sinks is not None:
            sums.append(sinks[:, None].expand(-1, len(q)))
        total = torch.logsumexp(torch.stack(sums), 0)
        out = torch.zeros(len(q), q.shape[1], v.shape[-1], device=q.device)
        for part, values in zip(torch.split(scores, step, -1), torch.split(v, step), strict=True):
            out += torch.einsum("hnm,mhd->nhd", self.weights(torch.exp(part - total[..., None])), values)
        return out, total.T

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """[heads, n, m]: scaled and capped."""
        scores = torch.einsum("nhd,mhd->hnm", q, k[:, self.kv_heads(q.shape[1])]) * self.spec.scale
        cap = self.spec.soft_cap
        return cap * torch.tanh(scores / cap) if cap else scores

    def mask(self, scores: Tensor, see: Tensor) -> Tensor:
        """-inf for what is not seen."""
        return scores.masked_fill(~see, -torch.inf)

    def weights(self, weights: Tensor) -> Tensor:
        """Probabilities as they multiply values."""
        return weights

    def kv_heads(self, heads: int) -> Tensor:
        """The KV head of each query head."""
        return torch.arange(heads) // (heads // self.spec.kv_heads)
