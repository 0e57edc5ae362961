"""Damaged and hostile models: refused by name, and never loaded as if nothing were wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from srtkit.spec.errors import LoaderError
from srtkit_conformance.check import Failed, Figures, Informational, Outcome, check, expect
from srtkit_conformance.kits.model_loader.harness import StoredModel
from srtkit_conformance.kits.model_loader.opening import (
    expect_equal,
    new_folder,
    opened,
    read,
    refused,
    stored_model,
    whole,
)
from srtkit_conformance.target import Target

FLIPS = 60


@check(
    "model_loader.truncated",
    level=1,
    clause="model_loader/1.0: LoaderError for a truncated file",
    explain="A download that stopped: the missing numbers are zeros, or reading them kills the process (SIGBUS). "
    "Compare the header's offsets with the file's size before mapping it.",
    isolated=True,
)
def truncated(target: Target) -> Outcome:
    _, model = stored_model(target)
    cuts = 0
    for file in model.files:
        data, header = file.read_bytes(), model.header.get(file, 64)
        for size in (0, 1, 7, 8, header // 2, header - 1, header, header + 1, len(data) // 2, len(data) - 33):
            file.write_bytes(data[:size])
            error = refused(target, model.path, model.weights, f"{file.name}, {size} of {len(data)} bytes")
            _names_a_file(error, model.path, f"{file.name}, truncated")
            cuts += 1
        file.write_bytes(data)
    return {"cuts": cuts} if cuts else Informational("no files of weights")


@check(
    "model_loader.flipped",
    level=1,
    clause="model_loader/1.0: LoaderError for a damaged file",
    explain="A flipped bit in a header that says what lies where: the loader crashes, raises something else, or reads "
    "wrong numbers. It may go unnoticed only where nothing depends on it.",
    isolated=True,
)
def flipped(target: Target) -> Outcome:
    _, model = stored_model(target)
    random = target.rng("flipped")
    found = 0
    for file in model.files:
        data = file.read_bytes()
        for _ in range(FLIPS // len(model.files)):
            spoilt = bytearray(data)
            spoilt[int(random.integers(model.header.get(file, 64)))] ^= 1 << int(random.integers(8))
            file.write_bytes(spoilt)
            found += _found(target, model)
        file.write_bytes(data)
    if not model.files:
        return Informational("no files of weights")
    expect(found > FLIPS // 6, "hardly any damage is found", observed=found, limit=FLIPS // 6)
    return {"flips": FLIPS, "refused": found}


def _found(target: Target, model: StoredModel) -> bool:
    """Whether the damage is refused, or asked-for weights are gone with it. Raises `Failed` for any other error."""
    try:
        with opened(target, model.path) as loader:
            read(loader, [whole(weight) for weight in model.weights])
    except LoaderError:
        return True
    except Failed:
        raise
    except Exception as error:
        raise Failed(f"damage raises {type(error).__name__}, not LoaderError: {error}") from error
    return False


@check(
    "model_loader.damaged",
    level=1,
    clause="model_loader/1.0: LoaderError for a damaged file, naming the file when something is missing",
    explain="The message says which damage was not found. An incomplete or contradictory model must not start.",
    isolated=True,
)
def damaged(target: Target) -> Outcome:
    harness, model = stored_model(target)
    return _all_refused(target, model, harness.damaged(new_folder(target, "damaged")), "this form has no other damage")


@check(
    "model_loader.outside",
    level=1,
    clause="model_loader/1.0: a source is its local path, a file or a folder",
    explain="A name in an index leads out of the model's folder (.., an absolute path), so that a downloaded model "
    "reads files of the machine.",
    isolated=True,
)
def outside(target: Target) -> Outcome:
    harness, model = stored_model(target)
    return _all_refused(target, model, harness.outside(new_folder(target, "outside")), "this form names no files")


@check(
    "model_loader.pickled",
    level=1,
    clause="model_loader/1.0: a loader reads weights and runs no code of them",
    explain="Opening a pickle runs the code in it: a downloaded model takes over the machine.",
    isolated=True,
)
def pickled(target: Target) -> Outcome:
    harness, model = stored_model(target)
    trap = target.folder / "the pickle was opened"
    cases = harness.pickled(new_folder(target, "pickled"), trap)
    outcome = _all_refused(target, model, cases, "this form has no pickles")
    expect(not trap.exists(), "the code in a pickle was run")
    return outcome


def _all_refused(target: Target, model: StoredModel, cases: Mapping[str, Path], without: str) -> Outcome:
    for what, path in cases.items():
        _names_a_file(refused(target, path, model.weights, what), path, what)
    return {"refused": len(cases)} if cases else Informational(without)


def _names_a_file(error: LoaderError, path: Path, what: str) -> None:
    says = str(error)
    expect(str(path) in says or path.name in says, f"{what}: the error names no file", observed=says)


@check(
    "model_loader.unharmed",
    level=1,
    clause="model_loader/1.0: a loader reads; it writes to nothing",
    explain="Loading a damaged or a sound model changes its files: a conversion in place, a cache beside the weights.",
)
def unharmed(target: Target) -> Figures:
    _, model = stored_model(target)
    root = model.path if model.path.is_dir() else model.path.parent
    before = {file: file.read_bytes() for file in root.rglob("*")}
    with opened(target, model.path) as loader:
        loader.index()
        first = read(loader, [whole(weight) for weight in model.weights])
        second = read(loader, [whole(weight) for weight in model.weights])
    for request, values in first.items():
        expect_equal(second[request], values, f"{request.name}, read again,")
    after = {file: file.read_bytes() for file in root.rglob("*")}
    changed = [file.name for file in before.keys() | after.keys() if before.get(file) != after.get(file)]
    expect(not changed, "loading changes the model's folder", observed=changed)
    return {"files": len(before)}
