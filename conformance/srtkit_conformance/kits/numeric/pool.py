"""Memory around a step: pools of poison, garbage where a kernel may read, guards around results. Knows no rows.

Contract: page 0 and the unused tail of a row's last page are finite and arbitrary; all else that no row
refers to is NaN here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from srtkit.spec.kv import KVLayout
from srtkit.spec.layers import DTYPES
from srtkit.spec.platform import Platform
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.threads import one_thread

CANARY = 77.0
"""Exact in every dtype, and far from what attention over the kit's inputs gives."""
GUARD = 64
"""Tokens before and after a result that must not change."""


def bytes_of(x: Tensor) -> Tensor:
    """The content bit by bit, [len(x), bytes], as a copy: NaN and fp8 compare only so."""
    return x.contiguous().view(torch.uint8).reshape(len(x), -1).clone()


@one_thread()
def new_planes(platform: Platform, layout: KVLayout, pages: int, *, adjacent: bool, poison: bool) -> dict[str, Tensor]:
    """One layer's planes [pages, *plane shape] by name: the second layer of a pool, all NaN where `poison`.

    Unless `adjacent` every other page of the pool lies between, as when layers alternate.
    """
    planes = {}
    for plane in layout.planes:
        step = 1 if adjacent else 2
        layers = 2 if poison else 1
        pool = platform.allocate("kv", (layers, pages * step, *plane.shape), DTYPES[plane.dtype])
        if poison:
            fill(pool, torch.nan)
        planes[plane.name] = pool[-1, ::step]
    return planes


def fill(target: Tensor, value: float) -> None:
    """Set every element to `value`, or to the nearest that the dtype has (the largest integer for NaN)."""
    target.copy_(_nearest(torch.full((), value), target.dtype).expand(target.shape))


@one_thread()
def litter(planes: Mapping[str, Tensor], pages: Sequence[int], size: float, seed: int) -> None:
    """Fill these pages with ±`size`, at most the dtype's largest value, the same random signs in each page."""
    for plane in planes.values():
        _set_pages(plane, pages, _signs(plane.shape[1:], plane.dtype, size, seed))


def spoil(planes: Mapping[str, Tensor], pages: Sequence[int]) -> None:
    """Fill these pages with NaN, or with the largest integer."""
    for plane in planes.values():
        _set_pages(plane, pages, _nearest(torch.full(plane.shape[1:], torch.nan), plane.dtype))


def _set_pages(plane: Tensor, pages: Sequence[int], values: Tensor) -> None:
    """Give pages the same content; as bytes, since not every dtype can be written by index."""
    if len(pages):
        plane.view(torch.uint8)[torch.tensor(pages, device=plane.device)] = values.to(plane.device).view(torch.uint8)


@lru_cache(maxsize=128)
def _signs(shape: torch.Size, dtype: torch.dtype, size: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return _nearest((torch.randint(0, 2, shape, generator=generator) * 2.0 - 1.0) * size, dtype)


def _nearest(values: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        largest = torch.finfo(dtype).max
        return values.clamp(-largest, largest).to(dtype)  # NaN stays NaN
    largest = torch.iinfo(dtype).max
    return values.nan_to_num(largest).clamp(torch.iinfo(dtype).min, largest).to(dtype)


class Guarded:
    """A result tensor [tokens, *entry] full of canaries, between guards of canaries."""

    @one_thread()
    def __init__(self, tokens: int, entry: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._all = torch.full((GUARD + tokens + GUARD, *entry), CANARY, dtype=dtype, device=device)
        self.inner = self._all[GUARD : GUARD + tokens]

    @one_thread()
    def covered(self, begin: int, end: int, name: str, where: object) -> Tensor:
        """What was written to tokens [begin, end), on the CPU; raises `Failed` for a write anywhere else."""
        whole = self._all.cpu()
        outside = torch.cat((whole[: GUARD + begin], whole[GUARD + end :]))
        touched = int((outside != CANARY).flatten(1).any(1).sum())
        if touched:
            raise Failed(
                f"gate D: {touched} tokens of {name} outside [{begin}, {end}) were written; {where}", observed=touched
            )
        return whole[GUARD + begin : GUARD + end]
