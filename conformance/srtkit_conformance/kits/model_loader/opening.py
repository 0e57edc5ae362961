"""Opens stored models with the loader under test, reads them, and compares with the truth.

Imports torch, so that the server of child processes has it before the first of them is forked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import ModelLoader, ModelLoaderBuild, WeightRequest
from srtkit_conformance.check import Failed, expect
from srtkit_conformance.kits.model_loader.harness import Harness, StoredModel, StoredWeight, Values, harness_for
from srtkit_conformance.target import Target


def stored_model(target: Target) -> tuple[Harness, StoredModel]:
    """The plugin's harness and a sound model of it, in a folder of its own."""
    harness = harness_for(target)
    return harness, harness.write(new_folder(target, "model"))


def new_folder(target: Target, name: str) -> Path:
    """An empty folder of the check."""
    folder = target.folder / name
    folder.mkdir()
    return folder


def build(target: Target, path: Path) -> ModelLoader:
    """Describe and open, as core does."""
    description = target.descriptor.describe(path, target.options)
    loader: ModelLoader = target.descriptor.build(ModelLoaderBuild(path, target.options, description.config))
    return loader


@contextmanager
def opened(target: Target, path: Path) -> Iterator[ModelLoader]:
    """An opened model, closed at the end."""
    loader = build(target, path)
    try:
        yield loader
    finally:
        loader.close()


def whole(weight: StoredWeight) -> WeightRequest:
    """The request for all of a weight."""
    return WeightRequest(weight.name, shape=weight.shape)


def part(weight: StoredWeight, dim: int, start: int, stop: int) -> WeightRequest:
    """The request for a slice of it."""
    return WeightRequest(weight.name, dim, start, stop, weight.shape)


def values_of(tensor: Tensor) -> Values:
    """A copy of a tensor's numbers, exact."""
    expect(tensor.device.type == "cpu", "a tensor is not on the CPU", observed=str(tensor.device))
    copied: Values = tensor.detach().to(torch.float64, copy=True).numpy()
    return copied


def dtype_of(tensor: Tensor) -> str:
    """Its name in the contract."""
    return str(tensor.dtype).removeprefix("torch.")


def read(loader: ModelLoader, requests: Iterable[WeightRequest]) -> dict[WeightRequest, Values]:
    """Request → values; every request answered exactly once."""
    wanted = list(requests)
    found: dict[WeightRequest, Values] = {}
    for request, tensor in loader.read(iter(wanted)):
        expect(request not in found, f"answers the request for {request.name} twice")
        found[request] = values_of(tensor)
    missing = [request.name for request in wanted if request not in found]
    expect(not missing, "requests were not answered", observed=missing[:5])
    expect(len(found) == len(wanted), "answers what nobody asked for", observed=len(found), limit=len(wanted))
    return found


def truth(model: StoredModel, loader: ModelLoader) -> dict[str, Values]:
    """Name → values of every weight: those stored, or those the loader makes up."""
    made = read(loader, [whole(weight) for weight in model.weights if weight.values is None])
    by_name = {request.name: values for request, values in made.items()}
    return {weight.name: by_name[weight.name] if weight.values is None else weight.values for weight in model.weights}


def expect_equal(got: Values, expected: Values, what: str) -> None:
    """Raise `Failed` unless shape and every bit agree."""
    expect(got.shape == expected.shape, f"{what} has another shape", observed=got.shape, limit=expected.shape)
    wrong = int(np.count_nonzero(got != expected))
    expect(wrong == 0, f"{what} holds other numbers", observed=f"{wrong} of {expected.size} differ")


def refused(target: Target, path: Path, weights: Sequence[StoredWeight], what: str) -> LoaderError:
    """The `LoaderError` that a damaged model raises on the way to its weights. Raises `Failed` if none comes."""
    try:
        with opened(target, path) as loader:
            requests = [WeightRequest(one.name, shape=one.shape) for one in loader.index() or weights]
            for _, tensor in loader.read(requests):
                values_of(tensor)
    except LoaderError as error:
        return error
    except Failed:
        raise
    except Exception as error:
        raise Failed(f"{what}: raises {type(error).__name__}, not LoaderError: {error}") from error
    raise Failed(f"{what}: is loaded as if nothing were wrong")
