"""Legal loaders: another order, copies, whole weights behind a slice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from srtkit.spec.model_loader import WeightInfo, WeightRequest
from srtkit_conformance.mutant import variant
from srtkit_conformance.mutants.model_loader.wrapping import Answer, Wrapped, around


class LastFirst(Wrapped):
    """The order of its index and of its answers is the reverse."""

    def index(self) -> Sequence[WeightInfo]:
        return list(reversed(self.inner.index()))

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request in reversed(list(requests)):
            yield request, self.one(request)


class WholeFirst(Wrapped):
    """Reads all of a weight and cuts the slice out of it."""

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request in requests:
            list(self.inner.read([request]))  # for what it refuses
            tensor = self.one(replace(request, dim=None))
            dim = request.dim
            yield request, tensor if dim is None else tensor.narrow(dim, request.start, request.stop - request.start)


class OwnBuffer(Wrapped):
    """Fills one buffer of its own again and again."""

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        last = None
        for request, tensor in self.inner.read(requests):
            if last is not None:
                last.zero_()
            last = tensor.clone()
            yield request, last


last_first = variant("model_loader.last_first", of="safetensors", sentence="Reads from the end.")(around(LastFirst))
whole_first = variant("model_loader.whole_first", of="safetensors", sentence="Cuts in memory.")(around(WholeFirst))
own_buffer = variant("model_loader.own_buffer", of="gguf", sentence="Takes a tensor back with the next one.")(
    around(OwnBuffer)
)
