"""The gated delta rule: S ← exp(decay) S; S ← S + beta (v - S k) kᵀ; out = S q. Dense rows, in float32.

heads.py names the axes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from srtkit_plugin_recurrent_torch.decay import Decay
from srtkit_plugin_recurrent_torch.heads import Heads

EPSILON = 1e-6


def advance(
    heads: Heads, weights: Mapping[str, Tensor], channels: Tensor, scalars: Mapping[str, Tensor], state: Tensor
) -> tuple[Tensor, Tensor]:
    """One chunk of convolved `channels` [b, t, 2 shared + own], "beta" and "decay" [b, g, r, t], from `state`.

    state [b, g, r, p, n] → out [b, g, r, t, p] and the state after it.
    """
    q, k, v = torch.split(channels, [heads.shared, heads.shared, heads.own], -1)
    q, k = (_normalised(heads.by_group(one)) for one in (q, k))
    compute = _one_token if channels.shape[1] == 1 else _chunk
    beta = scalars["beta"].unsqueeze(-1)
    return compute(q * heads.state_dim**-0.5, k, heads.by_head(v), beta, scalars["decay"], state)


def _normalised(x: Tensor) -> Tensor:
    """x [..., n] divided by its length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPSILON)


def _one_token(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """As the formula says."""
    state = state * decay.exp().unsqueeze(-1)
    state = state + (beta * (v - k @ state.mT)).mT * k
    return q @ state.mT, state


def _chunk(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Several tokens at once. What a token adds depends on what those before it add: a triangular system."""
    factors = Decay.of(decay)
    error = beta * (v - factors.since_start * (k @ state.mT))
    system = beta * (k @ k.mT) * factors.between  # its diagonal counts as 1
    added = torch.linalg.solve_triangular(system, error, upper=False, unitriangular=True)
    out = (q @ k.mT * factors.between) @ added
    out += factors.since_start * (q @ state.mT)
    return out, factors.whole * state + (added * factors.to_end).mT @ k
