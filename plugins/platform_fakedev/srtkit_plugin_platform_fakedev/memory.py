"""The device's memory: every byte is accounted for, a limit holds, and arenas can be given back.

Bytes lie in host tensors ("twins"), which only the device's tasks and this package see.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from weakref import WeakSet

import torch
from torch import Tensor

from srtkit.spec.errors import OutOfMemory
from srtkit_plugin_platform_fakedev.faults import PART
from srtkit_plugin_platform_fakedev.order import History
from srtkit_plugin_platform_fakedev.streams import POISON

TENSORS = "tensors"
"""What torch allocates by itself stands under this tag, beside the arenas'."""


class Budget:
    """Bytes in use by tag, their peak, and the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used: dict[str, int] = {}
        self.peak = 0

    @property
    def total(self) -> int:
        """Bytes in use."""
        return sum(self.used.values())

    def take(self, tag: str, n_bytes: int) -> None:
        """Raises `OutOfMemory` with what is wanted, in use and there."""
        if self.total + n_bytes > self.limit:
            raise OutOfMemory(
                PART,
                f"{tag} wants {n_bytes:,} B, {self.total:,} B of {self.limit:,} B are in use",
                "lower memory.fraction or memory.kv_gib, or set memory_mib under [platform.options]",
            )
        self.used[tag] = self.used.get(tag, 0) + n_bytes
        self.peak = max(self.peak, self.total)

    def give(self, tag: str, n_bytes: int) -> None:
        """The opposite of `take`."""
        self.used[tag] -= n_bytes


class Charge:
    """Bytes of a tag that are taken, or given back for a while."""

    def __init__(self, budget: Budget, tag: str, n_bytes: int) -> None:
        budget.take(tag, n_bytes)
        self._budget, self._tag, self._n_bytes = budget, tag, n_bytes
        self._taken = True

    def take(self) -> None:
        """Take them again. Raises `OutOfMemory`."""
        if not self._taken:
            self._budget.take(self._tag, self._n_bytes)
            self._taken = True

    def give(self) -> None:
        """Give them back."""
        if self._taken:
            self._budget.give(self._tag, self._n_bytes)
            self._taken = False


class Memory:
    """One allocation. It ends with its last device tensor; launched tasks keep the bytes themselves until they ran."""

    def __init__(
        self, budget: Budget, tag: str, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> None:
        n_bytes = extent(size, stride) * dtype.itemsize
        self.charge = Charge(budget, tag, n_bytes)
        weakref.finalize(self, self.charge.give)
        self.history = History()
        with torch.inference_mode():
            self._raw = torch.full((n_bytes,), POISON, dtype=torch.uint8)
            self.twin = self._raw.view(dtype).as_strided(tuple(size), tuple(stride))

    def poison(self) -> None:
        """Forget the contents."""
        with torch.inference_mode():
            self._raw.fill_(POISON)


class Arenas:
    """The blocks that core asks for by purpose."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._blocks: dict[str, WeakSet[Memory]] = {}

    def allocate(self, tag: str, shape: Sequence[int], dtype: torch.dtype) -> Memory:
        """A zeroed, contiguous block."""
        stride = [prod(shape[i + 1 :]) for i in range(len(shape))]
        block = Memory(self._budget, tag, shape, stride, dtype)
        with torch.inference_mode():
            block.twin.zero_()
        self._blocks.setdefault(tag, WeakSet()).add(block)
        return block

    def release(self, tag: str) -> None:
        """Give the bytes of the arena back; using it is an error until `restore`."""
        for block in self._blocks.get(tag, ()):
            block.charge.give()
            block.history.gone = f"the released arena {tag}"
            block.poison()

    def restore(self, tag: str) -> None:
        """Take the bytes again, at the same addresses, with undefined contents. Raises `OutOfMemory`."""
        for block in self._blocks.get(tag, ()):
            block.charge.take()
            block.history.gone = ""


def bytes_of(tensor: Tensor) -> tuple[int, int]:
    """The bytes of its storage from its first element to its last."""
    item, offset = tensor.dtype.itemsize, int(tensor.storage_offset())
    return offset * item, (offset + extent(tensor.size(), tensor.stride())) * item


def extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last, both included."""
    return 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
