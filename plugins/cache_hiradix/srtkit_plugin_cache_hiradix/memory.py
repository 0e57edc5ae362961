"""A rank's memory for pages: the device's planes, and the host's pages beside them in blocks of layers. Runs no stream.

On the host a page is one piece for each block: all planes of its layers, layer after layer. A block has as many layers
as make such a piece worth a copy, so that copies keep the link busy although pages lie anywhere. On the device pieces
pass through a stage, between which and the pages of a plane one kernel moves a whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.attention import LayerHandle
from srtkit.spec.platform import Platform
from srtkit.spec.step_plan import Ints

STAGE_BYTES = 32 << 20  # of each stage; a batch has as many pages as fit
SLAB_BYTES = 256 << 20  # of host memory in one piece: pinned memory comes in powers of two, large ones half waste
WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
Run = tuple[int, int, int]
"""First row of the stage, first page of the host, how many: both count up by one."""


@dataclass(frozen=True)
class Batch:
    """Pages that pass through a stage together, in the order of its rows: `here`, and on the device as `ids` int64."""

    here: Ints
    ids: Tensor
    runs: Sequence[Run]


class Block:
    """Layers in a row, and the pieces of `host_pages` pages. Slabs of `slab` pages, each [pages, words], hold these."""

    def __init__(
        self, platform: Platform, handles: Sequence[LayerHandle], host_pages: int, slab: int, word: torch.dtype
    ) -> None:
        self.layers = tuple(handle.index for handle in handles)
        self._parts: list[tuple[Tensor, slice]] = []  # a plane as [pages, words], and where its words are in a piece
        words = 0
        for plane in _planes(handles):
            flat = plane.view(len(plane), -1).view(torch.uint8).view(word)
            self._parts.append((flat, slice(words, words + flat.shape[1])))
            words += flat.shape[1]
        self.piece_bytes = words * word.itemsize
        self._slab, self._words, self._word = slab, words, word
        sizes = [min(slab, host_pages - start) for start in range(0, host_pages, slab)]
        self._slabs = [platform.host_buffer((size, words), word) for size in sizes]

    def host(self, page: int, n: int = 1) -> Tensor:
        """The pieces of `n` pages of one slab, [n, words]."""
        which, inside = divmod(page, self._slab)
        return self._slabs[which][inside : inside + n]

    def save(self, batches: Sequence[Batch], stage: Tensor) -> None:
        """Device → host, on the current stream, through a stage of bytes."""
        for batch in batches:
            rows = self._rows(batch, stage)
            for plane, part in self._parts:
                gather(plane, batch, rows[:, part])
            for row, page, n in batch.runs:
                self.host(page, n).copy_(rows[row : row + n], non_blocking=True)

    def load(self, batches: Sequence[Batch], stage: Tensor) -> None:
        """Host → device, on the current stream, through a stage of bytes."""
        for batch in batches:
            rows = self._rows(batch, stage)
            for row, page, n in batch.runs:
                rows[row : row + n].copy_(self.host(page, n), non_blocking=True)
            for plane, part in self._parts:
                scatter(plane, batch, rows[:, part])

    def _rows(self, batch: Batch, stage: Tensor) -> Tensor:
        n = len(batch.here)
        return stage[: n * self.piece_bytes].view(self._word).view(n, self._words)


def gather(plane: Tensor, batch: Batch, rows: Tensor) -> None:
    """Pages of a plane [pages, words] into `rows` [n, words] of a stage."""
    torch.index_select(plane, 0, batch.ids, out=rows)


def scatter(plane: Tensor, batch: Batch, rows: Tensor) -> None:
    """The inverse of `gather`."""
    plane.index_copy_(0, batch.ids, rows)


class ComponentMemory:
    """All layers of a component as `blocks`, in the order in which a step comes to them.

    `piece_bytes`: what a page's piece has at least, but for that of the last layers.
    """

    def __init__(self, platform: Platform, handles: Sequence[LayerHandle], host_pages: int, piece_bytes: int) -> None:
        handles = sorted(handles, key=lambda handle: handle.index)
        word = next(one for one in WORDS if not any(plane[0].nbytes % one.itemsize for plane in _planes(handles)))
        joined: list[list[LayerHandle]] = [[]]
        for handle in handles:
            if page_bytes(joined[-1]) >= piece_bytes:
                joined.append([])
            joined[-1].append(handle)
        largest = max(map(page_bytes, joined))
        self._slab, self._batch = max(1, SLAB_BYTES // largest), max(1, STAGE_BYTES // largest)
        self.blocks = [Block(platform, one, host_pages, self._slab, word) for one in joined]
        self.stage_bytes = largest * min(self._batch, host_pages)
        self._page_bytes = page_bytes(handles)
        self._platform, self._device = platform, next(_planes(handles)).device

    def batches(self, here: Ints, there: Ints) -> list[Batch]:
        """Pairs of pages on the device and the host, in batches. The current stream brings page ids to the device."""
        order = np.argsort(there)
        here, there = here[order], there[order]
        numbers = self._platform.host_buffer(here.shape, torch.int64)
        numbers.numpy()[:] = here
        ids = numbers.to(self._device, non_blocking=True)
        parts = [slice(start, start + self._batch) for start in range(0, len(here), self._batch)]
        return [Batch(here[part], ids[part], runs_of(there[part], self._slab)) for part in parts]

    def read(self, page: int) -> memoryview:
        """All that a page of the host holds, copied, layer after layer."""
        content = torch.empty(self._page_bytes, dtype=torch.uint8)
        for part, piece in self._pieces(page, content):
            part.copy_(piece)
        return memoryview(content.numpy())

    def write(self, page: int, content: bytes) -> bool:
        """The inverse of `read`. False, and nothing is written, if it is not as long as a page."""
        if len(content) != self._page_bytes:
            return False
        for part, piece in self._pieces(page, torch.frombuffer(bytearray(content), dtype=torch.uint8)):
            piece.copy_(part)
        return True

    def _pieces(self, page: int, content: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Of a page's content: (its part of `content`, the piece on the host) for each block."""
        for block in self.blocks:
            piece = block.host(page)[0].view(torch.uint8)
            yield content[: len(piece)], piece
            content = content[len(piece) :]


def runs_of(there: Ints, slab: int) -> list[Run]:
    """Ascending pages of the host as runs within slabs of so many pages, each of which is one copy."""
    starts = np.flatnonzero((np.diff(there, prepend=-2) != 1) | (there % slab == 0)).tolist()
    return [(i, int(there[i]), end - i) for i, end in zip(starts, [*starts[1:], len(there)], strict=True)]


def page_bytes(handles: Sequence[LayerHandle]) -> int:
    """Bytes of a page in all planes of these layers."""
    return sum(plane[0].nbytes for plane in _planes(handles))


def _planes(handles: Sequence[LayerHandle]) -> Iterator[Tensor]:
    for handle in handles:
        yield from handle.planes.values()
