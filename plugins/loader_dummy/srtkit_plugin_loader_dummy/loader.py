"""Makes weights up as they are asked for. The heavy module: torch. Knows no model.

All weights are windows of one pool of normal numbers, each at a place that its name determines: a model of
any size is filled at the speed of copying, and every rank gets its slice of the same weights. The length of
the pool is prime, so no two rows of a matrix are alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from math import prod
from typing import final

import torch

from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import ModelLoader, WeightInfo, WeightRequest

PART = "model_loader:dummy"
POOL = 1_000_003


@final
class DummyLoader(ModelLoader):
    """Float32 weights of mean 0 and the given deviation; those of norms have mean 1."""

    def __init__(self, seed: int, std: float) -> None:
        self._seed = seed
        generator = torch.Generator().manual_seed(seed)
        self._pool = torch.empty(POOL).normal_(std=std, generator=generator)

    def index(self) -> Sequence[WeightInfo]:
        """Empty: every weight that is asked for exists."""
        return ()

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[tuple[WeightRequest, torch.Tensor]]:
        """Yield the requests in their order. Raises `LoaderError` for one without a shape or beyond it."""
        for request in requests:
            yield request, self._tensor(request)

    def close(self) -> None:
        """Nothing is open."""

    def _tensor(self, request: WeightRequest) -> torch.Tensor:
        shape = request.shape
        if not shape:
            raise LoaderError(PART, f"{request.name} was asked for without its shape", "give the request its shape")
        rows, start = shape[0], 0
        if request.dim is not None:
            if not (0 <= request.dim < len(shape) and 0 <= request.start < request.stop <= shape[request.dim]):
                span = f"[{request.start}, {request.stop}) of dimension {request.dim}"
                raise LoaderError(PART, f"{request.name} of shape {list(shape)} has no {span}")
            if request.dim == 0:
                rows, start = request.stop - request.start, request.start
        row_size = prod(shape[1:])
        values = self._window(request.name, start * row_size, rows * row_size).view(rows, *shape[1:])
        if request.dim:
            values = values.narrow(request.dim, request.start, request.stop - request.start)
        return values + 1 if request.name.endswith("norm.weight") else values

    def _window(self, name: str, start: int, count: int) -> torch.Tensor:
        """`count` numbers of this weight from its flat position `start` on."""
        digest = blake2b(f"{self._seed}:{name}".encode(), digest_size=8).digest()
        at = (int.from_bytes(digest, "little") + start) % POOL
        end = at + count
        if end <= POOL:
            return self._pool[at:end].clone()
        return self._pool.repeat(-(-end // POOL))[at:end]
