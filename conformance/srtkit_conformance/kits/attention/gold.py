"""What a step must give: attention by its definition, a row at a time, from the tokens themselves. On the CPU.

Knows no pages, plans or backends, and shares no code with any. In float64 it is the truth; in float32
with probabilities and result rounded to the dtype it is the yardstick of what that dtype can give.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.attention import AttentionSpec


@dataclass(frozen=True)
class Tree:
    """Drafts of one row: `sees` bool [q_len, q_len], and each one's depth int32 [q_len]."""

    sees: Tensor
    depth: Tensor

    @staticmethod
    def random(rng: np.random.Generator, q_len: int) -> Tree:
        """A random parent for every draft; a draft sees its ancestors and itself."""
        sees = np.zeros((q_len, q_len), bool)
        depth = np.zeros(q_len, np.int32)
        for i in range(q_len):
            parent = int(rng.integers(-1, i)) if i else -1
            if parent >= 0:
                sees[i] = sees[parent]
                depth[i] = depth[parent] + 1
            sees[i, i] = True
        return Tree(torch.from_numpy(sees), torch.from_numpy(depth))

    def words(self) -> Tensor:
        """The bits as the contract packs them: int32 [q_len, words]."""
        q_len = len(self.depth)
        bits = np.zeros((q_len, -(-q_len // 32) * 32), np.uint8)
        bits[:, :q_len] = self.sees.numpy()
        return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view("<i4").astype(np.int32))


def visible(spec: AttentionSpec, stored: int, n_query: int, tree: Tree | None = None) -> Tensor:
    """Which of the row's tokens each query sees, bool [n_query, stored + n_query], from their positions."""
    position = torch.arange(stored + n_query)
    if tree is not None:
        position[stored:] = stored + tree.depth
        see = torch.ones(n_query, stored + n_query, dtype=torch.bool)
        see[:, stored:] = tree.sees
    else:
        mine = position[stored:, None]
        see = (position <= mine) if spec.causal else torch.ones(n_query, stored + n_query, dtype=torch.bool)
    if spec.window:
        see = see & (position[stored:, None] - position < spec.window)
    return see


def attend_row(
    spec: AttentionSpec,
    row: tuple[Tensor, Tensor, Tensor],
    see: Tensor,
    sinks: Tensor | None = None,
    *,
    rounded: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """One row's (q [n, heads, d], k [m, kv_heads, d], v [m, kv_heads, dv]) → out [n, heads, dv] and lse [n, heads].

    In float64, or in float32 with probabilities and result rounded to `rounded`. Query head h reads KV
    head h // ratio. A sink is a score without a value and counts in lse. Every query must see a token.
    """
    real = torch.float64 if rounded is None else torch.float32
    heads = torch.arange(row[0].shape[1]) // (row[0].shape[1] // row[1].shape[1])  # KV head of each query head
    q, k, v = row[0].to(real), row[1].to(real)[:, heads], row[2].to(real)[:, heads]
    scores = torch.einsum("nhd,mhd->hnm", q, k) * spec.scale
    if spec.soft_cap:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    scores.masked_fill_(~see, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(real)[:, None, None].expand(-1, scores.shape[1], 1)), -1)
    total = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - total[..., None])[..., : len(k)]
    if rounded is not None:
        weights = weights.to(rounded).to(real)
    out = torch.einsum("hnm,mhd->nhd", weights, v)
    return (out if rounded is None else out.to(rounded)).double(), total.T.double()
