"""Requests that do not fit are refused: nothing is made up, cut or guessed."""

from __future__ import annotations

from collections.abc import Sequence

from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import ModelLoader, WeightRequest
from srtkit_conformance.check import Failed, Figures, Informational, Outcome, check
from srtkit_conformance.kits.model_loader.opening import opened, stored_model, values_of
from srtkit_conformance.kits.model_loader.tiny import ABSENT
from srtkit_conformance.target import Target


def expect_refusals(loader: ModelLoader, requests: Sequence[tuple[str, WeightRequest]]) -> Figures:
    """Each request, alone, must raise `LoaderError`."""
    for what, request in requests:
        try:
            got = [values_of(tensor).shape for _, tensor in loader.read([request])]
        except LoaderError:
            continue
        raise Failed(f"{what} is not refused", observed=got, limit="LoaderError")
    return {"refused": len(requests)}


@check(
    "model_loader.missing",
    level=1,
    clause="model_loader/1.0: read raises LoaderError for a missing name",
    explain="A name that is not stored gives zeros, nothing, or a KeyError without the file's name. A tied head is "
    "not stored: the model's weight map knows that, the loader does not.",
)
def missing(target: Target) -> Outcome:
    harness, model = stored_model(target)
    with opened(target, model.path) as loader:
        if harness.made_up:
            return expect_refusals(loader, [("a weight without its shape", WeightRequest(model.weights[0].name))])
        shape = model.weights[0].shape
        absent = ["model.layers.77.mlp.up_proj.weight", "", f"{model.weights[0].name}.weight"]
        if model.says.get("tie_word_embeddings"):
            absent.append(ABSENT)
        requests = [(f"the name {name!r}", WeightRequest(name, shape=shape)) for name in absent]
        return expect_refusals(loader, [*requests, ("a name without a shape", WeightRequest("nothing"))])


@check(
    "model_loader.shape",
    level=1,
    clause="model_loader/1.0: read raises LoaderError for a stored shape that is not the request's shape",
    explain="The shape is not compared, or only its size: a transposed matrix is loaded, and the text is noise.",
)
def shape(target: Target) -> Outcome:
    harness, model = stored_model(target)
    if harness.made_up:
        return Informational("makes up a weight of any shape")
    matrix = next(one for one in model.weights if len(one.shape) == 2 and one.shape[0] != one.shape[1])
    vector = next(one for one in model.weights if len(one.shape) == 1)
    (rows, columns), (size,) = matrix.shape, vector.shape
    with opened(target, model.path) as loader:
        return expect_refusals(
            loader,
            [
                ("a transposed shape", WeightRequest(matrix.name, shape=(columns, rows))),
                ("a flat shape", WeightRequest(matrix.name, shape=(rows * columns,))),
                ("a shape with a row more", WeightRequest(matrix.name, shape=(rows + 1, columns))),
                ("a shape with a row less", WeightRequest(matrix.name, shape=(rows - 1, columns))),
                ("a vector as a column", WeightRequest(vector.name, shape=(size, 1))),
                ("a slice of another shape", WeightRequest(matrix.name, 0, 0, 1, (columns, rows))),
            ],
        )


@check(
    "model_loader.range",
    level=1,
    clause="model_loader/1.0: read raises LoaderError for a slice out of range",
    explain="A slice is cut to what there is, as in Python, and the rank gets less than its share.",
)
def range_(target: Target) -> Figures:
    _, model = stored_model(target)
    matrix = next(one for one in model.weights if len(one.shape) == 2)
    name, size = matrix.name, matrix.shape
    with opened(target, model.path) as loader:
        return expect_refusals(
            loader,
            [
                ("a slice beyond the rows", WeightRequest(name, 0, 0, size[0] + 1, size)),
                ("a slice beyond the columns", WeightRequest(name, 1, size[1] - 1, size[1] + 3, size)),
                ("a slice that begins beyond the end", WeightRequest(name, 0, size[0] + 2, size[0] + 4, size)),
                ("a slice from a negative row", WeightRequest(name, 0, -2, 3, size)),
                ("a slice to a negative row", WeightRequest(name, 0, 0, -1, size)),
                ("a slice that ends before it begins", WeightRequest(name, 0, 5, 3, size)),
                ("a slice of a third dimension", WeightRequest(name, 2, 0, 1, size)),
                ("a slice of dimension -1", WeightRequest(name, -1, 0, 1, size)),
            ],
        )
