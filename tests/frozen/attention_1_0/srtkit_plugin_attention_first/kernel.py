"""Attention of one row over its gathered keys and values. Knows no pages; put the fast kernel here."""

from __future__ import annotations

import torch
from torch import Tensor


def attend_row(q: Tensor, k: Tensor, v: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """q [n, q_heads, d], k [m, kv_heads, d], v [m, kv_heads, dv] → [n, q_heads, dv] in `dtype`.

    The n queries are the last n of the m tokens, and each sees itself and all before it. Query head h
    reads KV head h // (q_heads // kv_heads).
    """
    heads = torch.arange(q.shape[1], device=q.device) // (q.shape[1] // k.shape[1])
    scores = torch.einsum("nhd,mhd->hnm", q.to(dtype), k.to(dtype)[:, heads]) * scale
    later = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).triu(len(k) - len(q) + 1)
    weights = scores.masked_fill(later, float("-inf")).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weights, v.to(dtype)[:, heads])
