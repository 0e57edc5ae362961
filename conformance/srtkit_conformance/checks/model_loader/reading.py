"""Weights: the right numbers under the right names, whole and in slices, each request once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np

from srtkit.spec.model_loader import WeightRequest
from srtkit_conformance.check import Figures, Informational, Outcome, check, expect
from srtkit_conformance.kits.model_loader import system
from srtkit_conformance.kits.model_loader.opening import (
    build,
    dtype_of,
    expect_equal,
    new_folder,
    opened,
    part,
    read,
    stored_model,
    truth,
    values_of,
    whole,
)
from srtkit_conformance.target import Target


@check(
    "model_loader.index",
    level=1,
    clause="model_loader/1.0: index says what is stored, under canonical names; empty when any weight can be had",
    explain="A weight is missing from the index, stands there twice, or with the shape in the form's own order.",
)
def index(target: Target) -> Figures:
    harness, model = stored_model(target)
    with opened(target, model.path) as loader:
        infos = list(loader.index())
        again = list(loader.index())
    expect(infos == again, "index says something else the second time")
    names = [info.name for info in infos]
    twice = [name for name, count in Counter(names).items() if count > 1]
    expect(not twice, "the index names a weight twice", observed=twice)
    if harness.made_up:
        expect(not infos, "an index of weights that are made up", observed=names[:3])
        return {"weights": 0}
    stored = {weight.name: weight for weight in model.weights}
    missing, unexpected = sorted(stored.keys() - set(names)), sorted(set(names) - stored.keys())
    expect(not missing, "stored weights are missing from the index", observed=missing[:5])
    expect(not unexpected, "the index names weights that are not stored", observed=unexpected[:5])
    for info in infos:
        weight = stored[info.name]
        expect(info.shape == weight.shape, f"{info.name} has another shape", observed=info.shape, limit=weight.shape)
        expect(info.dtype == weight.dtype, f"{info.name} has another dtype", observed=info.dtype, limit=weight.dtype)
    return {"weights": len(infos)}


@check(
    "model_loader.index_reads_nothing",
    level=1,
    clause="model_loader/1.0: index reads no weights",
    explain="Opening or listing a model goes through its data: starting a server of a large model takes minutes more.",
)
def index_reads_nothing(target: Target) -> Outcome:
    harness = stored_model(target)[0]
    folder = new_folder(target, "large")
    model = harness.large(folder)
    if model is None or not system.LINUX:
        return Informational("this form has no large model, or the system does not count what is read")
    size = sum(file.stat().st_size for file in model.files)
    before = system.bytes_read()
    with opened(target, model.path) as loader:
        loader.index()
        touched = system.bytes_read() - before + system.bytes_mapped(folder)
        expect(touched < size // 8, "index reads weights", observed=f"{touched} bytes", limit=f"{size // 8} bytes")
        before = system.bytes_read() - system.bytes_mapped(folder)
        weight = model.weights[0]
        rows = weight.shape[0] // 64
        read(loader, [part(weight, 0, rows, 2 * rows)])
        sliced = system.bytes_read() + system.bytes_mapped(folder) - before
    return {"index_bytes": touched, "bytes_for_a_64th": sliced, "file_bytes": size}


@check(
    "model_loader.values",
    level=1,
    clause="model_loader/1.0: read yields dequantised tensors on the CPU, under canonical names",
    explain="Names are mixed up (q and k, gate and up), rows are left in the form's own order, a block is dequantised "
    "with its neighbour's scale, or numbers pass through a narrower dtype.",
)
def values(target: Target) -> Figures:
    harness, model = stored_model(target)
    numbers = 0
    with opened(target, model.path) as loader:
        dtypes = {info.name: info.dtype for info in loader.index()}
        expected = truth(model, loader)
        for request, tensor in loader.read([whole(weight) for weight in model.weights]):
            expect_equal(values_of(tensor), expected[request.name], request.name)
            got = dtype_of(tensor)
            said = dtypes.get(request.name, got)
            expect(got == said, f"{request.name} has another dtype than its index says", observed=got, limit=said)
            numbers += tensor.numel()
    if harness.made_up:
        with opened(target, model.path) as other:
            for name, made in truth(model, other).items():
                expect_equal(made, expected[name], f"{name}, made up again,")
                expect(len(np.unique(made)) > 1, f"{name} is made up of one number")
    return {"numbers": numbers}


@check(
    "model_loader.once",
    level=1,
    clause="model_loader/1.0: read yields each request exactly once, in the order that suits the source",
    explain="A request is skipped, answered twice, or answered with the tensor of another when they are out of order.",
)
def once(target: Target) -> Figures:
    _, model = stored_model(target)
    random = target.rng("once")
    asked = 0
    with opened(target, model.path) as loader:
        expected = truth(model, loader)
        expect(not list(loader.read([])), "answers although nothing was asked for")
        for _ in range(3):
            order = random.permutation(len(model.weights))
            requests = [whole(model.weights[at]) for at in order]
            requests += [part(model.weights[at], 0, 0, 1 + int(at) % 5) for at in order[:7]]
            answered = read(loader, requests)
            asked += len(requests)
            for request, got in answered.items():
                all_of_it = expected[request.name]
                expect_equal(got, all_of_it if request.dim is None else all_of_it[: request.stop], request.name)
        twice = [whole(model.weights[0]), whole(model.weights[1]), whole(model.weights[0])]
        names = Counter(request.name for request, _ in loader.read(twice))
        expect(names == Counter(one.name for one in twice), "equal requests are not each answered", observed=names)
    return {"requests": asked}


@check(
    "model_loader.slices",
    level=1,
    clause="model_loader/1.0: a request is a slice [start, stop) along a dimension",
    explain="The slice is taken along the other dimension, is cut at a block's border, of the stored instead of the "
    "canonical rows, or ends one too early. The shares of all ranks together must be the whole, bit by bit.",
)
def slices(target: Target) -> Figures:
    _, model = stored_model(target)
    count = 0
    with opened(target, model.path) as loader:
        expected = truth(model, loader)
        for weight in model.weights:
            for dim, size in enumerate(weight.shape):
                for cuts in _cuts(size):
                    requests = [part(weight, dim, *cut) for cut in pairwise(cuts)]
                    shares = read(loader, requests)
                    count += len(requests)
                    joined = np.concatenate([shares[request] for request in requests], axis=dim)
                    expect_equal(
                        joined, expected[weight.name], f"{weight.name} from {len(requests)} shares along {dim}"
                    )
    return {"slices": count}


def _cuts(size: int) -> list[list[int]]:
    """Even and uneven ways to cut a dimension into shares."""
    even = [[size * at // n for at in range(n + 1)] for n in (2, 4) if size % n == 0]
    return [*even, [0, 1, 3, size // 2 + 1, size - 1, size]]


@check(
    "model_loader.valid_until_next",
    level=1,
    clause="model_loader/1.0: a tensor is valid until the next one is taken",
    explain="A reader ahead of its caller fills the buffer that the caller is still using.",
)
def valid_until_next(target: Target) -> None:
    _, model = stored_model(target)
    with opened(target, model.path) as loader:
        expected = truth(model, loader)
        for request, tensor in loader.read([whole(weight) for weight in model.weights]):
            expect_equal(values_of(tensor), expected[request.name], request.name)
            other = build(target, model.path)
            read(other, [WeightRequest(request.name, shape=request.shape)])
            other.close()
            expect_equal(values_of(tensor), expected[request.name], f"{request.name}, looked at again,")
