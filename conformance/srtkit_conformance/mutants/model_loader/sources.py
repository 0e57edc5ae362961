"""Loaders that take damaged or hostile sources for sound ones, describe badly, or leave files open."""

from __future__ import annotations

import importlib
import json
import pickle
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import (
    ModelDescription,
    ModelLoader,
    ModelLoaderBuild,
    ModelLoaderDescriptor,
    WeightInfo,
    WeightRequest,
)
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.model_loader.wrapping import Answer, Make, Wrapped, around

T = TypeVar("T")

INDEX = "model.safetensors.index.json"


class Mending:
    """A descriptor's functions over a folder that has first been copied and made to look sound."""

    def __init__(self, descriptor: ModelLoaderDescriptor) -> None:
        self.descriptor = descriptor

    def mended(self, folder: Path) -> Path:
        """The folder to use instead."""
        if not folder.is_dir() or not (folder / INDEX).exists():
            return folder
        copy = Path(tempfile.mkdtemp(prefix="srt-mended-")) / "model"
        shutil.copytree(folder, copy)
        self.mend(folder, copy)
        return copy

    def mend(self, folder: Path, copy: Path) -> None:
        """Change the copy."""

    def describe(self, path: Path, options: BaseModel) -> ModelDescription:
        return self._used(path, lambda folder: self.descriptor.describe(folder, options))

    def build(self, build: ModelLoaderBuild) -> ModelLoader:
        return self._used(build.path, lambda folder: self.descriptor.build(replace(build, path=folder)))

    def _used(self, path: Path, work: Callable[[Path], T]) -> T:
        folder = self.mended(path)
        try:
            return work(folder)
        except LoaderError as error:
            raise LoaderError(error.part, error.cause.replace(str(folder), str(path)), error.remedy) from error
        finally:
            if folder != path:
                shutil.rmtree(folder.parent)


class FillsUp(Mending):
    """Zeros where a file ends too early."""

    def mend(self, folder: Path, copy: Path) -> None:
        for file in copy.glob("*.safetensors"):
            data = file.read_bytes()
            try:
                (length,) = struct.unpack("<Q", data[:8])
                table = json.loads(data[8 : 8 + length])
                end = max(entry["data_offsets"][1] for entry in table.values())
            except (ValueError, struct.error, LookupError, TypeError):
                continue
            if len(data) > 8 + length:
                file.write_bytes(data.ljust(8 + length + end, b"\0"))


class LastWins(Mending):
    """Of a name that stands twice in the index, the last place."""

    def mend(self, folder: Path, copy: Path) -> None:
        try:
            index = json.loads((folder / INDEX).read_text())
        except ValueError:
            return
        (copy / INDEX).write_text(json.dumps(index))


class FollowsPaths(Mending):
    """Goes wherever the index leads."""

    def mend(self, folder: Path, copy: Path) -> None:
        try:
            places = json.loads((folder / INDEX).read_text())["weight_map"]
        except (ValueError, LookupError):
            return
        if any("/" in place for place in places.values()):
            for place in set(places.values()):
                shutil.copy(folder / place, copy / Path(place).name)
            inside = {name: Path(place).name for name, place in places.items()}
            (copy / INDEX).write_text(json.dumps({"weight_map": inside}))


class OpensPickles(Mending):
    """Looks into a pickle before it refuses it."""

    def describe(self, path: Path, options: BaseModel) -> ModelDescription:
        for file in path.glob("*.bin") if path.is_dir() else ():
            pickle.loads(file.read_bytes())
        return self.descriptor.describe(path, options)


def mending(kind: type[Mending]) -> Make:
    """The plugin with its functions replaced."""

    def made(descriptor: ModelLoaderDescriptor) -> ModelLoaderDescriptor:
        functions = kind(descriptor)
        return replace(descriptor, describe=functions.describe, build=functions.build)

    return made


def raising_value_errors(descriptor: ModelLoaderDescriptor) -> ModelLoaderDescriptor:
    """The plugin, with an error of Python where a header is damaged."""

    def build(args: ModelLoaderBuild) -> ModelLoader:
        try:
            return descriptor.build(args)
        except LoaderError as error:
            if "sound" in error.cause and args.config:
                raise ValueError(error.cause) from error
            raise

    return replace(descriptor, build=build)


def accepting_all(descriptor: ModelLoaderDescriptor) -> ModelLoaderDescriptor:
    """The plugin, for any folder."""
    return replace(descriptor, accepts=lambda path: path.is_dir() or descriptor.accepts(path))


def describing_time(descriptor: ModelLoaderDescriptor) -> ModelLoaderDescriptor:
    """The plugin, with the time in its description."""

    def describe(path: Path, options: BaseModel) -> ModelDescription:
        found = descriptor.describe(path, options)
        return replace(found, generation={**found.generation, "loaded_at": time.monotonic_ns()})

    return replace(descriptor, describe=describe)


@dataclass(frozen=True)
class DescribeWithTorch:
    """A describe function that needs torch. A class, so that it can be pickled."""

    descriptor: ModelLoaderDescriptor

    def __call__(self, path: Path, options: BaseModel) -> ModelDescription:
        importlib.import_module("torch")
        return self.descriptor.describe(path, options)


class NeverCloses(Wrapped):
    kept: list[ModelLoader] = []  # noqa: RUF012 - the fault itself

    def __init__(self, inner: ModelLoader) -> None:
        super().__init__(inner)
        self.kept.append(inner)

    def close(self) -> None:
        return


class ClosesOnce(Wrapped):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise ValueError("close of a closed loader")
        self.closed = True
        self.inner.close()


class CrashesAfterClose(Wrapped):
    """Reads on in what is no longer there."""

    closed = False

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        for request, tensor in self.inner.read(requests):
            yield request, tensor
            if self.closed:
                raise RuntimeError("the map is gone")

    def close(self) -> None:
        self.closed = True
        self.inner.close()


class ConvertsInPlace(Wrapped):
    """Writes a file for the next start into the model's folder."""

    def __init__(self, inner: ModelLoader, folder: Path) -> None:
        super().__init__(inner)
        self.folder = folder

    def index(self) -> Sequence[WeightInfo]:
        infos = self.inner.index()
        (self.folder / "index.cache").write_text(str(len(infos)))
        return infos


def converting(descriptor: ModelLoaderDescriptor) -> ModelLoaderDescriptor:
    """The plugin, with a cache beside the weights."""
    return replace(descriptor, build=lambda args: ConvertsInPlace(descriptor.build(args), args.path))


fills_up = mutant(
    "model_loader.fills_up",
    of="safetensors",
    sentence="Takes zeros for what a truncated file lacks.",
    killed_by=("model_loader.truncated",),
)(mending(FillsUp))

last_wins = mutant(
    "model_loader.last_wins",
    of="safetensors",
    sentence="Takes the last of two places of a weight.",
    killed_by=("model_loader.damaged",),
)(mending(LastWins))

follows_paths = mutant(
    "model_loader.follows_paths",
    of="safetensors",
    sentence="Reads files outside the model's folder.",
    killed_by=("model_loader.outside",),
)(mending(FollowsPaths))

opens_pickles = mutant(
    "model_loader.opens_pickles",
    of="safetensors",
    sentence="Opens a pickle.",
    killed_by=("model_loader.pickled",),
)(mending(OpensPickles))

raises_value_errors = mutant(
    "model_loader.raises_value_errors",
    of="safetensors",
    sentence="Raises a ValueError for a damaged header.",
    killed_by=("model_loader.flipped", "model_loader.truncated", "model_loader.damaged"),
)(raising_value_errors)

accepts_all = mutant(
    "model_loader.accepts_all",
    of="safetensors",
    sentence="Accepts any folder.",
    killed_by=("model_loader.accepts",),
)(accepting_all)

describes_time = mutant(
    "model_loader.describes_time",
    of="safetensors",
    sentence="Says something else each time.",
    killed_by=("model_loader.describe",),
)(describing_time)


@mutant(
    "model_loader.describes_with_torch",
    of="safetensors",
    sentence="Imports torch to describe a model.",
    killed_by=("model_loader.light",),
)
def describes_with_torch(descriptor: ModelLoaderDescriptor) -> ModelLoaderDescriptor:
    return replace(descriptor, describe=DescribeWithTorch(descriptor))


never_closes = mutant(
    "model_loader.never_closes",
    of="safetensors",
    sentence="Keeps its files open after close.",
    killed_by=("model_loader.frees",),
)(around(NeverCloses))

closes_once = mutant(
    "model_loader.closes_once",
    of="safetensors",
    sentence="Cannot be closed twice.",
    killed_by=("model_loader.close",),
)(around(ClosesOnce))

crashes_after_close = mutant(
    "model_loader.crashes_after_close",
    of="safetensors",
    sentence="Fails in another way than LoaderError when it is closed midway.",
    killed_by=("model_loader.close_midway",),
)(around(CrashesAfterClose))

converts_in_place = mutant(
    "model_loader.converts_in_place",
    of="safetensors",
    sentence="Writes into the model's folder.",
    killed_by=("model_loader.unharmed",),
)(converting)
