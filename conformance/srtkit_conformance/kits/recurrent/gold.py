"""What a layer must give: the contract's formulas, a token at a time, from a sequence's first token on. On the CPU.

Knows no slots, steps or backends, and shares no code with any. In float64 it is the truth; in float32 with
convolution, state as it is read, and result rounded to the dtype it is the yardstick of what that dtype can give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from srtkit.spec.recurrent import RecurrentSpec
from srtkit_conformance.kits.recurrent.case import CHANNELS
from srtkit_conformance.kits.threads import one_thread


class Gold:
    """One sequence in one layer. In float64, or in float32 with roundings to `rounded`.

    `stored`: the state that is carried on is rounded to it, token by token.
    """

    def __init__(
        self,
        spec: RecurrentSpec,
        weights: Mapping[str, Tensor],
        *,
        rounded: torch.dtype | None = None,
        stored: torch.dtype | None = None,
    ) -> None:
        self._spec, self._rounded, self._stored = spec, rounded, stored
        self._real = real = torch.float64 if rounded is None else torch.float32
        self._weights = {name: values.to(real) for name, values in weights.items()}
        self._history = torch.zeros(spec.conv_width - 1, spec.conv_channels, dtype=real)
        self._state = torch.zeros(spec.heads, spec.head_dim, spec.state_dim, dtype=real)

    @one_thread()
    @torch.inference_mode()
    def advance(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """Outputs [n, heads, head_dim] of the sequence's next n tokens, as float64."""
        given = {name: values.to(self._real) for name, values in tokens.items()}
        value, first, second = self._split(self._brief(self._convolved(given[CHANNELS[self._spec.kind]])))
        out = []
        for token in range(len(value)):
            if self._spec.kind == "mamba2":
                read = self._mamba2(value[token], first[token], second[token], given["dt"][token])
            else:
                scalars = given["beta"][token], given["decay"][token]
                read = self._gated_delta(first[token], second[token], value[token], *scalars)
            out.append(_read(self._brief(self._state), read))
            if self._stored is not None:
                self._state = self._state.to(self._stored).to(self._real)
        result = torch.stack(out) if out else value
        if "d" in self._weights:
            result = result + self._weights["d"][:, None] * value
        return self._brief(result).double()

    def _brief(self, x: Tensor) -> Tensor:
        return x if self._rounded is None else x.to(self._rounded).to(self._real)

    def _convolved(self, x: Tensor) -> Tensor:
        """SiLU(convolution + bias) over the next [n, channels]."""
        weight = self._weights["conv_weight"]
        rows = torch.cat((self._history, x))
        self._history = rows[len(x) :]
        total = (rows.unfold(0, weight.shape[1], 1) * weight).sum(-1)  # windows, the newest token last
        if "conv_bias" in self._weights:
            total = total + self._weights["conv_bias"]
        return total / (1 + torch.exp(-total))

    def _split(self, channels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x or v [n, heads, head_dim], and B and C or q and k [n, heads, state_dim]."""
        spec = self._spec
        own, shared = spec.heads * spec.head_dim, spec.groups * spec.state_dim
        if spec.kind == "mamba2":
            value, first, second = torch.split(channels, [own, shared, shared], 1)
        else:
            first, second, value = torch.split(channels, [shared, shared, own], 1)
        group = torch.arange(spec.heads) // (spec.heads // spec.groups)
        first, second = (one.reshape(-1, spec.groups, spec.state_dim)[:, group] for one in (first, second))
        return value.reshape(-1, spec.heads, spec.head_dim), first, second

    def _mamba2(self, x: Tensor, b: Tensor, c: Tensor, dt: Tensor) -> Tensor:
        """Advance the state by a token; returns what reads it. x [heads, head_dim], b and c [heads, state_dim]."""
        factor = torch.exp(dt * self._weights["a"])
        self._state = factor[:, None, None] * self._state + (dt[:, None] * x)[:, :, None] * b[:, None, :]
        return c

    def _gated_delta(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor) -> Tensor:
        """Likewise. v [heads, head_dim], q and k [heads, state_dim]."""
        q, k = (one / torch.sqrt((one * one).sum(-1, keepdim=True) + 1e-6) for one in (q, k))
        state = torch.exp(decay)[:, None, None] * self._state
        error = beta[:, None] * (v - _read(state, k))
        self._state = state + error[:, :, None] * k[:, None, :]
        scaled: Tensor = q / math.sqrt(q.shape[-1])
        return scaled


def _read(state: Tensor, key: Tensor) -> Tensor:
    """S key: [heads, head_dim, state_dim] with [heads, state_dim] → [heads, head_dim]."""
    return torch.bmm(state, key[:, :, None])[:, :, 0]
