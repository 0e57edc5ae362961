"""Mamba2, the state space dual: S ← exp(dt a) S + dt x Bᵀ, out = S C + d x. Dense rows, in float32.

heads.py names the axes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from srtkit_plugin_recurrent_torch.decay import Decay
from srtkit_plugin_recurrent_torch.heads import Heads


def advance(
    heads: Heads, weights: Mapping[str, Tensor], channels: Tensor, scalars: Mapping[str, Tensor], state: Tensor
) -> tuple[Tensor, Tensor]:
    """One chunk of convolved `channels` [b, t, own + 2 shared] and "dt" [b, g, r, t], from `state` [b, g, r, p, n].

    → out [b, g, r, t, p] and the state after it.
    """
    x, b, c = torch.split(channels, [heads.own, heads.shared, heads.shared], -1)
    x, b, c = heads.by_head(x), heads.by_group(b), heads.by_group(c)
    a, d = weights["a"], weights.get("d")
    added = x * scalars["dt"].unsqueeze(-1)
    logarithm = scalars["dt"] * a.view(heads.groups, heads.ratio, 1)
    compute = _one_token if channels.shape[1] == 1 else _chunk
    out, state = compute(added, b, c, logarithm, state)
    return out if d is None else out + x * d.view(heads.groups, heads.ratio, 1, 1), state


def _one_token(added: Tensor, b: Tensor, c: Tensor, logarithm: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """As the formula says."""
    state = state * logarithm.exp().unsqueeze(-1) + added.mT * b
    return c @ state.mT, state


def _chunk(added: Tensor, b: Tensor, c: Tensor, logarithm: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Several tokens at once: each meets those before it through the products of C and B, and the state."""
    decay = Decay.of(logarithm)
    out = (c @ b.mT * decay.between) @ added
    out += decay.since_start * (c @ state.mT)
    return out, decay.whole * state + (added * decay.to_end).mT @ b
