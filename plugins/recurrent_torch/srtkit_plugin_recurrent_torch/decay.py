"""How much of a state is left between the tokens of a chunk. Shared by both recurrences.

Sums of logarithms are taken in float64: their differences are small numbers between large ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Decay:
    """Factors between 0 and 1 in float32.

    `since_start` [..., n, 1]: on the state before the chunk, at each token, its own factor included. `between`
    [..., n, n]: at token i of what token j added, 0 for j > i. `to_end` [..., n, 1]: at the chunk's end of what
    each token added. `whole` [..., 1, 1]: on the state over the chunk.
    """

    since_start: Tensor
    between: Tensor
    to_end: Tensor
    whole: Tensor

    @staticmethod
    def of(logarithms: Tensor) -> Decay:
        """From the logarithm of each token's factor, [..., n], at most 0."""
        total = logarithms.double().cumsum(-1)
        later = torch.ones(total.shape[-1], total.shape[-1], dtype=torch.bool, device=total.device).triu(1)
        # Before exp: above the diagonal the differences are positive and would overflow.
        between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(later, -torch.inf)
        end = total[..., -1:]
        return Decay(
            since_start=total.exp().float().unsqueeze(-1),
            between=between.exp().float(),
            to_end=(end - total).exp().float().unsqueeze(-1),
            whole=end.exp().float().unsqueeze(-1),
        )
