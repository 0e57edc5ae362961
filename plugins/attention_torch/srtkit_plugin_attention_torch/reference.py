"""Attention as it is defined, in float32: what may be seen, then softmax(q k) v. Made to be read.

Knows dense tensors of one row; no pages, no steps, no plans.
"""

from __future__ import annotations

import torch
from torch import Tensor


def visible(n_query: int, n_key: int, window: int, causal: bool, device: torch.device) -> Tensor:
    """Which keys each query sees, bool [n_query, n_key]: the last query stands at the last key.

    A window is W visible tokens, itself included; 0 means all earlier ones.
    """
    key = torch.arange(n_key, device=device)
    query = torch.arange(n_key - n_query, n_key, device=device).unsqueeze(1)
    see = key <= query if causal else torch.ones(n_query, n_key, dtype=torch.bool, device=device)
    return see & (key > query - window) if window else see


def tree_visible(bits: Tensor, positions: Tensor, n_key: int, window: int = 0) -> Tensor:
    """Which keys the drafts of one row see, bool [q_len, n_key]: all of the prefix, and the drafts its bits name.

    `bits` int32 [q_len, words], bit j of word w for draft 32 w + j; `positions` int32 [q_len] count from
    the start of the sequence by depth in the tree. The drafts are the last q_len keys.
    """
    n_query = bits.shape[0]
    drafts = (bits.unsqueeze(-1) >> torch.arange(32, device=bits.device)) & 1  # [q_len, words, 32]
    drafts = drafts.reshape(n_query, -1)[:, :n_query].bool()
    n_prefix = n_key - n_query
    see = torch.cat((torch.ones(n_query, n_prefix, dtype=torch.bool, device=bits.device), drafts), 1)
    if window:
        place = torch.cat((torch.arange(n_prefix, device=bits.device), positions))
        see &= place > positions.unsqueeze(1) - window
    return see


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    see: Tensor,
    scale: float,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """q [n, heads, d], k [m, kv_heads, d], v [m, kv_heads, dv], see bool [n, m] → out [n, heads, dv], lse [n, heads].

    All float32. Query head h reads KV head h // (heads / kv_heads). A sink is a score without a value;
    it counts in lse. A query that sees nothing gets zeros and lse -inf.
    """
    n, heads, d = q.shape
    kv_heads = k.shape[1]
    grouped = q.view(n, kv_heads, heads // kv_heads, d)
    scores = torch.einsum("nhgd,mhd->nhgm", grouped, k) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~see[:, None, None, :], -torch.inf)

    sink = None if sinks is None else sinks.view(1, kv_heads, -1)
    largest = scores.amax(-1) if sink is None else torch.maximum(scores.amax(-1), sink)
    largest = largest.clamp(min=torch.finfo(torch.float32).min)  # a query that sees nothing: exp(-inf - finite) = 0
    weights = torch.exp(scores - largest.unsqueeze(-1))
    total = weights.sum(-1)
    if sink is not None:
        total = total + torch.exp(sink - largest)
    out = torch.einsum("nhgm,mhd->nhgd", weights, v) / total.clamp(min=1e-30).unsqueeze(-1)
    lse = largest + torch.log(total)
    return out.reshape(n, heads, -1), lse.reshape(n, heads)


def merge(out: Tensor, lse: Tensor, out2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """The result over the union of two disjoint sets of keys. out [n, heads, dv], lse [n, heads]; float32."""
    total = torch.logaddexp(lse, lse2)
    seen = total > -torch.inf
    share = torch.where(seen, torch.exp(lse - total), 0.0).unsqueeze(-1)
    share2 = torch.where(seen, torch.exp(lse2 - total), 0.0).unsqueeze(-1)
    return out.float() * share + out2.float() * share2, total
