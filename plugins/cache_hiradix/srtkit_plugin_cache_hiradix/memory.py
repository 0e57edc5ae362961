"""A rank's memory for pages: the device's planes, layer by layer, and the host's beside them. Moves runs of pages.

Host memory of a plane is one buffer [layers, pages, *shape], pinned where the platform has it.
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

Run = tuple[int, int, int]
"""First page on the device, first page on the host, how many: both count up by one."""


def runs_of(here: Ints, there: Ints) -> list[Run]:
    """Pairs of pages as runs, so that neighbours are one copy."""
    if not len(here):
        return []
    cuts = np.flatnonzero((np.diff(here) != 1) | (np.diff(there) != 1)) + 1
    starts = [0, *cuts.tolist()]
    ends = [*cuts.tolist(), len(here)]
    return [(int(here[start]), int(there[start]), end - start) for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class LayerMemory:
    """One layer's planes: (on the device, on the host) pairs of [pages, *shape]."""

    index: int
    planes: tuple[tuple[Tensor, Tensor], ...]

    def save(self, runs: Sequence[Run]) -> None:
        """Device → host, on the current stream."""
        for device, host in self.planes:
            for here, there, n in runs:
                host[there : there + n].copy_(device[here : here + n], non_blocking=True)

    def load(self, runs: Sequence[Run]) -> None:
        """Host → device, on the current stream."""
        for device, host in self.planes:
            for here, there, n in runs:
                device[here : here + n].copy_(host[there : there + n], non_blocking=True)


class ComponentMemory:
    """All layers of a component, in the order in which a step comes to them."""

    def __init__(self, platform: Platform, handles: Sequence[LayerHandle], host_pages: int) -> None:
        groups: dict[object, list[LayerHandle]] = {}
        for handle in handles:
            form = tuple((name, plane.shape, plane.dtype) for name, plane in handle.planes.items())
            groups.setdefault(form, []).append(handle)
        self._host: list[Tensor] = []
        layers: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for group in groups.values():
            for name, plane in group[0].planes.items():
                host = platform.host_buffer((len(group), host_pages, *plane.shape[1:]), plane.dtype)
                self._host.append(host)
                for place, handle in enumerate(group):
                    layers.setdefault(handle.index, []).append((handle.planes[name], host[place]))
        self.layers = [LayerMemory(index, tuple(planes)) for index, planes in sorted(layers.items())]

    def read(self, page: int) -> bytes:
        """All that a page of the host holds, in one piece: buffer after buffer, layer after layer."""
        return b"".join(_bytes(host[:, page]) for host in self._host)

    def write(self, page: int, content: bytes) -> bool:
        """The inverse of `read`. False, and nothing is written, if it is not as long as a page."""
        if len(content) != sum(host[:, 0].nbytes for host in self._host):
            return False
        left = memoryview(bytearray(content))
        for host in self._host:
            target = host[:, page]
            part, left = left[: target.nbytes], left[target.nbytes :]
            target.copy_(torch.frombuffer(part, dtype=torch.uint8).view(host.dtype).view(target.shape))
        return True


def page_bytes(layers: Iterator[LayerHandle]) -> int:
    """Bytes of a page in all planes of these layers."""
    return sum(plane[0].nbytes for handle in layers for plane in handle.planes.values())


def _bytes(part: Tensor) -> bytes:
    whole: bytes = part.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return whole
