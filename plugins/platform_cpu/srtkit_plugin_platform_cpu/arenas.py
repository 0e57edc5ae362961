"""Arenas: zeroed memory by purpose, which can be given back and taken again at the same addresses.

A block is an anonymous mapping: the system hands a page out when it is first written, so start-up does
not wait for gigabytes of zeros, and a released page is zero again when it is next touched.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from weakref import WeakSet

import torch
from torch import Tensor

from srtkit.spec.errors import OutOfMemory
from srtkit.spec.platform import ArenaTag

HUGE = 2 << 20
HUGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
"""Linux only. A page of KV is read from anywhere: with 4 KiB pages each costs a walk through the page tables."""


class Arenas:
    """All blocks of one process; a block ends with its last tensor.

    `available` says how many bytes the machine can still give.
    """

    def __init__(self, part: str, available: Callable[[], int]) -> None:
        self._part = part
        self._available = available
        self._blocks: dict[ArenaTag, WeakSet[mmap.mmap]] = {}
        self._released: set[ArenaTag] = set()

    def reserved(self) -> dict[ArenaTag, int]:
        """Bytes of every arena that is not released."""
        return {tag: sum(map(len, blocks)) for tag, blocks in self._blocks.items() if tag not in self._released}

    def allocate(self, tag: ArenaTag, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A zeroed tensor of this arena. Raises `OutOfMemory` with what is wanted, reserved and available.

        Memory reserved before counts as still to be taken, since it may be untouched.
        """
        n_bytes = prod(shape) * dtype.itemsize
        reserved, available = sum(self.reserved().values()), self._available()
        if n_bytes + reserved > available:
            raise OutOfMemory(
                self._part,
                f"{tag} wants {n_bytes:,} B, {reserved:,} B are reserved, and {available:,} B are available",
                "lower memory.fraction or memory.kv_gib, or stop what else uses this machine's memory",
            )
        if n_bytes == 0:
            return torch.zeros(tuple(shape), dtype=dtype)
        block = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if HUGE_PAGES is not None and n_bytes >= HUGE:
            with suppress(OSError):  # a kernel built without them
                block.madvise(HUGE_PAGES)
        self._blocks.setdefault(tag, WeakSet()).add(block)
        return torch.frombuffer(block, dtype=torch.uint8).view(dtype).view(tuple(shape))

    def release(self, tag: ArenaTag) -> None:
        """Give the arena's memory to the system; addresses stay, contents are lost."""
        for block in self._blocks.get(tag, ()):
            block.madvise(mmap.MADV_DONTNEED)
        self._released.add(tag)

    def restore(self, tag: ArenaTag) -> None:
        """Use the arena again; it reads as zeros."""
        self._released.discard(tag)
