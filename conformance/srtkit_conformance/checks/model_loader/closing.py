"""What closing leaves: nothing open, nothing mapped, whenever it happens."""

from __future__ import annotations

from srtkit.spec.errors import LoaderError
from srtkit_conformance.check import Informational, Outcome, check, expect
from srtkit_conformance.kits.model_loader import system
from srtkit_conformance.kits.model_loader.opening import build, expect_equal, read, stored_model, values_of, whole
from srtkit_conformance.target import Target


@check(
    "model_loader.close",
    level=1,
    clause="model_loader/1.0: close closes files; it is idempotent",
    explain="The second close raises, or a loader that was closed disturbs one that is still open.",
)
def close(target: Target) -> None:
    _, model = stored_model(target)
    first, second = build(target, model.path), build(target, model.path)
    requests = [whole(weight) for weight in model.weights]
    before = read(first, requests)
    first.close()
    first.close()
    for request, values in read(second, requests).items():
        expect_equal(values, before[request], f"{request.name} from another loader")
    second.close()


@check(
    "model_loader.close_midway",
    level=1,
    clause="model_loader/1.0: close is safe to call midway through read",
    explain="Reading on after close touches memory that is no longer mapped, or hangs. It may raise LoaderError, end, "
    "or go on with the right numbers.",
    isolated=True,
)
def close_midway(target: Target) -> None:
    _, model = stored_model(target)
    requests = [whole(weight) for weight in model.weights]
    other = build(target, model.path)
    expected = read(other, requests)
    other.close()
    for taken in (0, 1, len(requests) // 2):
        loader = build(target, model.path)
        reading = loader.read(requests)
        for _ in range(taken):
            next(reading)
        loader.close()
        try:
            for request, tensor in reading:
                expect_equal(values_of(tensor), expected[request], f"{request.name} after close")
        except LoaderError:
            pass
        loader.close()


@check(
    "model_loader.frees",
    level=1,
    clause="model_loader/1.0: close closes files",
    explain="A file stays open or mapped after a load that ended, was given up midway, or failed: memory of the size "
    "of the model, and a file that cannot be replaced.",
)
def frees(target: Target) -> Outcome:
    _, model = stored_model(target)
    if not system.LINUX or not model.files:
        return Informational("no files of weights, or a system that does not say which are open")
    folder = model.path if model.path.is_dir() else model.path.parent
    for taken in (len(model.weights), 1):
        loader = build(target, model.path)
        reading = loader.read([whole(weight) for weight in model.weights])
        for _ in range(taken):
            next(reading)
        loader.close()
        del reading, loader
        held = system.files_held(folder)
        expect(not held, f"files are held after close, {taken} weights read", observed=held)
    return {"files": len(model.files)}
