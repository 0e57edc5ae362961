"""Mamba2 over one row, token by token. Knows no slots; put the fast kernel here."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.recurrent import RecurrentSpec


def step_row(
    spec: RecurrentSpec, weights: Mapping[str, Tensor], xbc: Tensor, dt: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """xbc [conv_width - 1 + n, conv_channels], history first, dt [n, heads], state [heads, head_dim, state_dim].

    Returns out [n, heads, head_dim] and the state after the last token. Computes in the dtype of dt.
    """
    dtype, n = dt.dtype, len(dt)
    convolved = sum(xbc[i : i + n] * tap for i, tap in enumerate(weights["conv_weight"].to(dtype).T))
    if "conv_bias" in weights:
        convolved = convolved + weights["conv_bias"].to(dtype)
    shared = spec.groups * spec.state_dim
    x, b, c = torch.split(F.silu(convolved), [spec.heads * spec.head_dim, shared, shared], 1)
    x = x.view(n, spec.heads, spec.head_dim)
    b, c = (one.view(n, spec.groups, spec.state_dim).repeat_interleave(spec.heads // spec.groups, 1) for one in (b, c))
    factor = torch.exp(dt * weights["a"].to(dtype))
    added = dt.unsqueeze(-1) * x
    state = state.to(dtype)
    out = torch.empty_like(x)
    for token in range(n):
        state = factor[token, :, None, None] * state + added[token, :, :, None] * b[token, :, None, :]
        out[token] = (state @ c[token, :, :, None]).squeeze(-1)
    if "d" in weights:
        out += weights["d"].to(dtype).unsqueeze(-1) * x
    return out, state
