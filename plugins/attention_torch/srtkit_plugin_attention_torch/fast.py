"""The fast path: the pieces of a step as calls of torch's flash kernel for CPUs, merged where needed.

It serves plain causal attention (windows included) of one dtype over adjacent pages. All that does not
depend on the layer is made once per step, since each small torch operation costs a layer microseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.platform import Platform
from srtkit_plugin_attention_torch.pieces import Piece, Place, Slots
from srtkit_plugin_attention_torch.reference import visible

flash = torch._scaled_dot_product_flash_attention_for_cpu  # the public sdpa does not return the log-sum-exp

Size = tuple[int, int, int, int]


@dataclass(frozen=True)
class Heads:
    """Head counts and size: query head h reads KV head h // ratio."""

    kv_heads: int
    ratio: int
    head_dim: int

    @property
    def width(self) -> int:
        """Elements of one token's keys."""
        return self.kv_heads * self.head_dim


class Buffers:
    """Memory of one plan: gathered keys and values [tokens, kv_heads, head_dim], and partial results in float32."""

    def __init__(self, platform: Platform, heads: Heads, gathered: int, tokens: int, dtype: torch.dtype) -> None:
        keys = (gathered, heads.kv_heads, heads.head_dim)
        self.k = platform.allocate("workspace", keys, dtype)
        self.v = platform.allocate("workspace", keys, dtype)
        partial = (tokens, heads.kv_heads, heads.ratio)
        self.out = platform.allocate("workspace", (*partial, heads.head_dim), torch.float32)
        self.lse = platform.allocate("workspace", (*partial, 1), torch.float32)


class StoredKeys:
    """Stored tokens as 4-D keys and values: a view where their slots are consecutive, else gathered."""

    def __init__(self, slots: Slots, buffers: Buffers, size: Size, stride: Size) -> None:
        n = len(slots)
        self.size = size
        self.stride = stride
        self.first = int(slots[0])
        self.index: Tensor | None = None
        if slots[-1] - slots[0] != n - 1 or not (np.diff(slots) == 1).all():
            self.index = torch.from_numpy(slots)
            self.k_rows, self.v_rows = buffers.k[:n], buffers.v[:n]
            self.k, self.v = self.k_rows.as_strided(size, stride), self.v_rows.as_strided(size, stride)

    def load(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """From a layer's planes [slots, kv_heads, head_dim]."""
        if self.index is None:
            begin = self.first * k.stride(0)
            return (
                k.as_strided(self.size, self.stride, k.storage_offset() + begin),
                v.as_strided(self.size, self.stride, v.storage_offset() + begin),
            )
        torch.index_select(k, 0, self.index, out=self.k_rows)
        torch.index_select(v, 0, self.index, out=self.v_rows)
        return self.k, self.v


class Call(ABC):
    """One kernel call. q and results are seen as [T, kv_heads, ratio, size] and reshaped without a copy."""

    mask: Tensor | None = None
    causal: bool = False

    def __init__(self, piece: Piece, heads: Heads) -> None:
        self.heads = heads
        self.rows = piece.rows
        self.place = piece.place
        self.fresh = piece.fresh
        self.first = piece.token
        self.stop = piece.token + piece.tokens

    @abstractmethod
    def arrange(self, x: Tensor) -> Tensor:
        """The piece's tokens of x [T, kv_heads, ratio, size] in the kernel's order of four dimensions."""

    @abstractmethod
    def keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values from planes [slots, kv_heads, head_dim]."""

    @abstractmethod
    def fresh_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values from this step's own k, v [T, kv_heads, head_dim]."""


class DecodeRows(Call):
    """Rows of one query each: the query heads of a KV head are the kernel's queries, so K is not repeated."""

    def __init__(self, piece: Piece, heads: Heads, buffers: Buffers) -> None:
        super().__init__(piece, heads)
        size = (piece.rows, heads.kv_heads, piece.n_key, heads.head_dim)
        self._keys = StoredKeys(piece.slots, buffers, size, (piece.n_key * heads.width, heads.head_dim, heads.width, 1))
        if piece.lengths is not None:
            unseen = torch.arange(piece.n_key) >= torch.from_numpy(piece.lengths).unsqueeze(1)
            mask = torch.zeros(unseen.shape, dtype=buffers.k.dtype).masked_fill_(unseen, -torch.inf)
            self.mask = mask.view(piece.rows, 1, 1, -1)

    def arrange(self, x: Tensor) -> Tensor:
        """[rows, kv_heads, ratio, size]."""
        return x if len(x) == self.rows else x[self.first : self.stop]

    def keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, kv_heads, n_key, head_dim]."""
        return self._keys.load(k, v)

    def fresh_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Never asked for: a decode row reads older tokens too."""
        raise AssertionError("a decode piece has no fresh keys")


class Span(Call):
    """Adjacent tokens against one run of keys: a row, its prefix, or the prefix that several rows share."""

    def __init__(self, piece: Piece, heads: Heads, buffers: Buffers) -> None:
        super().__init__(piece, heads)
        self.causal = piece.fresh
        self._size = (heads.kv_heads, heads.ratio, piece.n_key, heads.head_dim)
        self._keys = StoredKeys(piece.slots, buffers, self._size, (heads.head_dim, 0, heads.width, 1))
        if piece.mask_window is not None:
            see = visible(piece.n_query, piece.n_key, piece.mask_window, True, buffers.k.device)
            mask = torch.zeros(see.shape, dtype=buffers.k.dtype).masked_fill_(~see, -torch.inf)
            self.mask = mask.view(1, 1, piece.n_query, piece.n_key)

    def arrange(self, x: Tensor) -> Tensor:
        """[kv_heads, ratio, tokens, size]."""
        return x[self.first : self.stop].permute(1, 2, 0, 3)

    def keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """[kv_heads, ratio, n_key, head_dim]; the heads of a group are the same memory."""
        return self._keys.load(k, v)

    def fresh_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As `keys`."""
        k, v = (x[self.first : self.stop].transpose(0, 1).unsqueeze(1).expand(self._size) for x in (k, v))
        return k, v


class FreshRows(Call):
    """Short rows of equal length, each against its own tokens; K is repeated for each query head."""

    causal = True

    def __init__(self, piece: Piece, heads: Heads, buffers: Buffers) -> None:
        super().__init__(piece, heads)
        self._size = (piece.rows, piece.n_query, heads.kv_heads, heads.head_dim)
        stride = (piece.n_query * heads.width, heads.width, heads.head_dim, 1)
        self._keys = StoredKeys(piece.slots, buffers, self._size, stride)

    def arrange(self, x: Tensor) -> Tensor:
        """[rows, query heads, n_query, size]."""
        rows, n_query = self._size[:2]
        return x[self.first : self.stop].view(rows, n_query, -1, x.shape[-1]).transpose(1, 2)

    def keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, query heads, n_query, head_dim]."""
        return self._repeat(*self._keys.load(k, v))

    def fresh_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As `keys`."""
        k, v = (x[self.first : self.stop].view(self._size) for x in (k, v))
        return self._repeat(k, v)

    def _repeat(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (x.repeat_interleave(self.heads.ratio, 2).transpose(1, 2) for x in (k, v))
        return k, v


def make_call(piece: Piece, heads: Heads, buffers: Buffers) -> Call:
    """The piece with its indices, masks and views."""
    if piece.n_query == 1:
        return DecodeRows(piece, heads, buffers)
    if piece.rows > 1:
        return FreshRows(piece, heads, buffers)
    return Span(piece, heads, buffers)


@dataclass(frozen=True)
class Output:
    """Where results go: out [T, kv_heads, ratio, head_dim], and lse [T, kv_heads, ratio, 1] when wanted."""

    out: Tensor
    lse: Tensor | None

    def put(self, call: Call, buffers: Buffers, out: Tensor, lse: Tensor) -> None:
        """Store a call's result, or fold it into what its queries have so far.

        Partial results are kept in float32 and rounded once, with the last piece.
        """
        if call.place is Place.ONLY:
            self._finish(call, out, lse)
            return
        partial, partial_lse = call.arrange(buffers.out), call.arrange(buffers.lse)
        if call.place is Place.FIRST:
            partial.copy_(out)
            partial_lse.copy_(lse)
            return
        partial.lerp_(out.float(), torch.sigmoid(lse - partial_lse))
        if call.place is Place.MIDDLE or self.lse is not None:
            partial_lse.copy_(torch.logaddexp(partial_lse, lse))
        if call.place is Place.LAST:
            self._finish(call, partial, partial_lse)

    def _finish(self, call: Call, out: Tensor, lse: Tensor) -> None:
        call.arrange(self.out).copy_(out)
        if self.lse is not None:
            call.arrange(self.lse).copy_(lse)


def attend(
    calls: Iterable[Call],
    q: Tensor,
    planes: tuple[Tensor, Tensor],
    fresh: tuple[Tensor, Tensor] | None,
    scale: float,
    buffers: Buffers,
    output: Output,
) -> None:
    """Run the calls of a step for one layer.

    q [T, kv_heads, ratio, head_dim]; planes (k, v) [slots, kv_heads, head_dim]; fresh (k, v) [T, kv_heads, head_dim].
    """
    for call in calls:
        k, v = call.keys(*planes) if fresh is None or not call.fresh else call.fresh_keys(*fresh)
        out, lse = flash(call.arrange(q), k, v, is_causal=call.causal, attn_mask=call.mask, scale=scale)
        output.put(call, buffers, out, lse.unsqueeze(-1))
