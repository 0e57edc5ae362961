"""How the entries of a layer stand in memory: writing, reading and moving tokens by slot.

Knows planes, page strides and the fp8 encoding. Knows nothing of rows, steps or attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.attention import LayerHandle


class TokenPlane:
    """One plane [pages, page_tokens, *entry], addressed by slot = page * page_tokens + offset.

    `rows` is the same memory as [slots, *entry] where pages are adjacent, else None. An fp8 plane
    holds value / scale; `scale` is a float32 scalar or one per head (the entry's first dimension).
    """

    def __init__(self, plane: Tensor, scale: Tensor | None) -> None:
        self.plane = plane
        self.page_tokens = plane.shape[1]
        self.entry = plane.shape[2:]
        self.fp8 = plane.dtype.itemsize == 1
        self.scale = None
        if self.fp8 and scale is not None:
            self.scale = scale.reshape(-1, *(1,) * (len(self.entry) - 1))
        self._raw = plane.view(torch.uint8) if self.fp8 else plane  # index operations do not know fp8
        self.rows: Tensor | None = None
        if self._raw.is_contiguous():
            self.rows = self._raw.view(-1, *self.entry)

    def write(self, slots: Tensor, values: Tensor) -> None:
        """Store values [n, *entry] at int64 `slots` [n]."""
        self._put(slots, self._encode(values))

    def read(self, slots: Tensor) -> Tensor:
        """The entries at int64 `slots` [n] as float32 [n, *entry]."""
        values = self._take(slots).view(self.plane.dtype).float()
        return values if self.scale is None else values * self.scale

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy stored entries between int64 slots [n], bit by bit."""
        self._put(target, self._take(source))

    def _encode(self, values: Tensor) -> Tensor:
        if not self.fp8:
            return values.to(self.plane.dtype)
        scaled = values.float() if self.scale is None else values.float() / self.scale
        largest = torch.finfo(self.plane.dtype).max
        return scaled.clamp(-largest, largest).to(self.plane.dtype).view(torch.uint8)

    def _put(self, slots: Tensor, raw: Tensor) -> None:
        if self.rows is not None:
            self.rows.index_copy_(0, slots, raw)
        else:
            self._raw[slots // self.page_tokens, slots % self.page_tokens] = raw

    def _take(self, slots: Tensor) -> Tensor:
        if self.rows is not None:
            return self.rows.index_select(0, slots)
        return self._raw[slots // self.page_tokens, slots % self.page_tokens]


class Entries:
    """The two planes of a layer: keys and values, or for MLA latent and rope part."""

    def __init__(self, layer: LayerHandle, names: tuple[str, str]) -> None:
        scales = layer.scales or {}
        self.layer = layer
        self.latent = names == ("latent", "rope")
        first, second = names
        self.first = TokenPlane(layer.planes[first], scales.get("k"))
        self.second = TokenPlane(layer.planes[second], scales.get("k" if self.latent else "v"))
        self.rows: tuple[Tensor, Tensor] | None = None  # both planes' rows, if both have them
        if self.first.rows is not None and self.second.rows is not None:
            self.rows = (self.first.rows, self.second.rows)

    def keys_and_values(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """What attention sees at int64 `slots` [n]: float32 [n, kv_heads, head_dim] and [n, kv_heads, v_head_dim].

        With MLA every query head shares one key, the latent and its rope part; the value is the latent.
        """
        first, second = self.first.read(slots), self.second.read(slots)
        if not self.latent:
            return first, second
        return torch.cat((first, second), -1).unsqueeze(1), first.unsqueeze(1)
