"""Loaders that yield other weights than were asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import ModelLoader, WeightInfo, WeightRequest
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.model_loader.wrapping import Answer, Wrapped, around

if TYPE_CHECKING:
    from torch import Tensor


class SkipsLast(Wrapped):
    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        answers = list(requests)
        yield from self.inner.read(answers[:-1] if len(answers) > 20 else answers)


class YieldsTwice(Wrapped):
    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request, tensor in self.inner.read(requests):
            yield request, tensor
            if request.dim is not None and request.start == 0:
                yield request, tensor


class EqualOnce(Wrapped):
    """Answers equal requests once."""

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        return self.inner.read(dict.fromkeys(requests))


class FirstAsked(Wrapped):
    """Reads in file order, and answers in the order of the requests."""

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        wanted = list(requests)
        for request, (_, tensor) in zip(wanted, self.inner.read(wanted), strict=True):
            yield request, tensor


class OtherDimension(Wrapped):
    """Takes a slice of columns from square matrices as one of rows."""

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request in requests:
            square = request.dim == 1 and len(set(request.shape)) == 1
            yield request, self.one(replace(request, dim=0) if square else request)


class ClampsSlices(Wrapped):
    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request in requests:
            dim = -1 if request.dim is None else request.dim
            size = request.shape[dim] if 0 <= dim < len(request.shape) else 0
            stop = min(request.stop, size) if request.start in range(size) else request.stop
            yield request, self.one(replace(request, stop=stop))


class NarrowsFloats(Wrapped):
    """Passes float32 through float16."""

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request, tensor in self.inner.read(requests):
            yield request, tensor.half().to(tensor.dtype) if tensor.dtype.itemsize == 4 else tensor


class SwapsKV(Wrapped):
    """Takes keys for values and values for keys."""

    OTHER: ClassVar = {".k_proj.": ".v_proj.", ".v_proj.": ".k_proj."}

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request, tensor in self.inner.read(requests):
            name = re.sub(r"\.[kv]_proj\.", lambda found: self.OTHER[found[0]], request.name)
            yield request, self.one(replace(request, name=name)).to(tensor.dtype)


class IgnoresShape(Wrapped):
    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request in requests:
            yield request, self.one(replace(request, shape=()))


class SizesOnly(Wrapped):
    """Takes a shape for right when it has as many numbers."""

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        stored = {info.name: info.shape for info in self.inner.index()}
        for request in requests:
            shape = stored.get(request.name, ())
            same = sorted(shape) == sorted(request.shape)
            tensor = self.one(replace(request, shape=shape if same else request.shape))
            yield request, tensor


class MakesUpMissing(Wrapped):
    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request in requests:
            try:
                yield request, self.one(request)
            except LoaderError as error:
                if "no weight" not in error.cause or not request.shape:
                    raise
                yield request, self.one(WeightRequest(self.inner.index()[0].name)) * 0


class IndexLacksLast(Wrapped):
    def index(self) -> Sequence[WeightInfo]:
        return self.inner.index()[:-1]


class IndexSaysFloat32(Wrapped):
    def index(self) -> Sequence[WeightInfo]:
        return [replace(info, dtype="float32") for info in self.inner.index()]


class IndexReads(Wrapped):
    """Reads everything when it is asked for the index."""

    def index(self) -> Sequence[WeightInfo]:
        infos = self.inner.index()
        for _, tensor in self.inner.read([WeightRequest(info.name) for info in infos]):
            tensor.sum()
        return infos


class OneBuffer(Wrapped):
    """All loaders of the process yield tensors in one buffer."""

    buffers: dict[object, Tensor] = {}  # noqa: RUF012 - the fault itself

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request, tensor in self.inner.read(requests):
            if tensor.dtype not in self.buffers:
                self.buffers[tensor.dtype] = tensor.new_empty(1 << 20)
            place = self.buffers[tensor.dtype][: tensor.numel()].view(tensor.shape)
            place.copy_(tensor)
            yield request, place
            place.zero_()


class ChangesAtRest(Wrapped):
    """Scales what it makes up anew in every loader."""

    count = 0

    def __init__(self, inner: ModelLoader) -> None:
        super().__init__(inner)
        ChangesAtRest.count += 1
        self.factor = 1 + ChangesAtRest.count

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request, tensor in self.inner.read(requests):
            yield request, tensor * self.factor


class LeavesRowsInterleaved(Wrapped):
    """Yields the rows of q and k as they are stored."""

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request, tensor in self.inner.read(requests):
            if request.dim is None and (".q_proj." in request.name or ".k_proj." in request.name):
                heads = tensor.reshape(-1, 2, 8, tensor.shape[-1])
                tensor = heads.transpose(1, 2).reshape(tensor.shape)
            yield request, tensor


skips_last = mutant(
    "model_loader.skips_last",
    of="safetensors",
    sentence="Skips the last of many requests.",
    killed_by=("model_loader.once",),
)(around(SkipsLast))

yields_twice = mutant(
    "model_loader.yields_twice",
    of="safetensors",
    sentence="Answers the request for a first share twice.",
    killed_by=("model_loader.once", "model_loader.slices"),
)(around(YieldsTwice))

equal_once = mutant(
    "model_loader.equal_once",
    of="safetensors",
    sentence="Answers two equal requests once.",
    killed_by=("model_loader.once",),
    note="of equal requests, where another skips one of many",
)(around(EqualOnce))

first_asked = mutant(
    "model_loader.first_asked",
    of="safetensors",
    sentence="Answers a request with the tensor of another when they are out of order.",
    killed_by=("model_loader.once",),
    note="the one check of order",
)(around(FirstAsked))

other_dimension = mutant(
    "model_loader.other_dimension",
    of="safetensors",
    sentence="Slices the rows of a square matrix instead of its columns.",
    killed_by=("model_loader.slices",),
)(around(OtherDimension))

clamps_slices = mutant(
    "model_loader.clamps_slices",
    of="safetensors",
    sentence="Cuts a slice to what there is.",
    killed_by=("model_loader.range",),
)(around(ClampsSlices))

narrows_floats = mutant(
    "model_loader.narrows_floats",
    of="safetensors",
    sentence="Passes numbers through a narrower dtype.",
    killed_by=("model_loader.values", "model_loader.slices"),
)(around(NarrowsFloats))

swaps_kv = mutant(
    "model_loader.swaps_kv",
    of="safetensors",
    sentence="Takes keys for values.",
    killed_by=("model_loader.values", "model_loader.slices"),
    note="the names are wrong, where another has the numbers wrong",
)(around(SwapsKV))

leaves_rows_interleaved = mutant(
    "model_loader.leaves_rows_interleaved",
    of="gguf",
    sentence="Yields the rows of q and k in the form's own order.",
    killed_by=("model_loader.values",),
)(around(LeavesRowsInterleaved))

ignores_shape = mutant(
    "model_loader.ignores_shape",
    of="safetensors",
    sentence="Does not compare shapes.",
    killed_by=("model_loader.shape",),
)(around(IgnoresShape))

sizes_only = mutant(
    "model_loader.sizes_only",
    of="safetensors",
    sentence="Loads a transposed matrix.",
    killed_by=("model_loader.shape",),
    note="compares, but too little",
)(around(SizesOnly))

makes_up_missing = mutant(
    "model_loader.makes_up_missing",
    of="safetensors",
    sentence="Gives zeros for a weight that is not stored.",
    killed_by=("model_loader.missing",),
)(around(MakesUpMissing))

index_lacks_last = mutant(
    "model_loader.index_lacks_last",
    of="safetensors",
    sentence="Leaves a weight out of the index.",
    killed_by=("model_loader.index",),
)(around(IndexLacksLast))

index_says_float32 = mutant(
    "model_loader.index_says_float32",
    of="safetensors",
    sentence="States another dtype than it yields.",
    killed_by=("model_loader.index", "model_loader.values"),
)(around(IndexSaysFloat32))

index_reads = mutant(
    "model_loader.index_reads",
    of="safetensors",
    sentence="Reads all weights for the index.",
    killed_by=("model_loader.index_reads_nothing",),
)(around(IndexReads))

one_buffer = mutant(
    "model_loader.one_buffer",
    of="safetensors",
    sentence="A second loader overwrites the tensor of the first.",
    killed_by=("model_loader.valid_until_next",),
)(around(OneBuffer))

changes_at_rest = mutant(
    "model_loader.changes_at_rest",
    of="dummy",
    sentence="Makes up other weights each time: ranks would disagree.",
    killed_by=("model_loader.values",),
)(around(ChangesAtRest))
