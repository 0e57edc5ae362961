"""The causal convolution in front of a recurrence. Knows dense rows of equal length; no slots, no steps."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def causal_conv(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """SiLU of a convolution: `tokens` [rows, width - 1 + n, channels], history first → float32 [rows, n, channels].

    `weight` [channels, width], its last column for the newest token.
    """
    width = weight.shape[1]
    n = tokens.shape[1] - width + 1
    taps = weight.float().T
    total = tokens[:, :n] * taps[0]
    for column in range(1, width):
        total.addcmul_(tokens[:, column : column + n], taps[column])
    return F.silu(total if bias is None else total.add_(bias.float()))
