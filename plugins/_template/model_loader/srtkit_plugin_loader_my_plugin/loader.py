"""Reads tensors out of weights.npz, which numpy writes with `np.savez`. Knows no config and no model."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import ModelLoader, WeightInfo, WeightRequest
from srtkit_plugin_loader_my_plugin import PART, WEIGHTS

DTYPES = ("float32", "float16", "int8", "uint8", "int32")
DAMAGE = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error)
SUFFIX = ".npy"


@final
class MyPluginLoader(ModelLoader):
    """An opened file. Raises `LoaderError` for one that is damaged or holds a dtype that is not in `DTYPES`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / WEIGHTS
        try:
            self._archive = zipfile.ZipFile(self._path)
            self._infos = {info.name: info for info in map(self._header, self._archive.namelist())}
        except DAMAGE as error:
            raise self._refusal(f"is not a sound .npz file: {error}") from error

    def index(self) -> Sequence[WeightInfo]:
        """What is stored, in the order of the file."""
        return list(self._infos.values())

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[tuple[WeightRequest, Tensor]]:
        """Yield every request, those for one weight after another, so that it is unpacked once."""
        wanted = list(requests)
        for request in wanted:
            self._check(request)
        name, whole = "", torch.empty(0)
        for request in sorted(wanted, key=lambda request: request.name):
            if request.name != name:
                name, whole = request.name, torch.from_numpy(self._array(request.name))
            dim, start, stop = request.dim, request.start, request.stop
            yield request, whole if dim is None else whole.narrow(dim, start, stop - start)

    def close(self) -> None:
        """Close the file; a `read` that is under way then ends with `LoaderError`."""
        self._archive.close()

    def _header(self, member: str) -> WeightInfo:
        """Shape and dtype of one member; reads its first bytes only."""
        with self._archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
        if dtype.name not in DTYPES or not dtype.isnative:
            raise self._refusal(f"{member} has the dtype {dtype.str} ({dtype.name}), known: {', '.join(DTYPES)}")
        return WeightInfo(member.removesuffix(SUFFIX), shape, dtype.name)

    def _array(self, name: str) -> npt.NDArray[np.generic]:
        try:
            with self._archive.open(name + SUFFIX) as file:
                array: npt.NDArray[np.generic] = np.lib.format.read_array(file)
        except DAMAGE as error:
            raise self._refusal(f"{name} cannot be read: {error}") from error
        return array

    def _check(self, request: WeightRequest) -> None:
        info = self._infos.get(request.name)
        if info is None:
            raise self._refusal(f"holds no weight {request.name}")
        if request.shape not in ((), info.shape):
            raise self._refusal(f"{request.name} has the shape {info.shape}, the model expects {request.shape}")
        dim = request.dim
        inside = dim is None or (0 <= dim < len(info.shape) and 0 <= request.start < request.stop <= info.shape[dim])
        if not inside:
            span = f"[{request.start}, {request.stop}) of dimension {dim}"
            raise self._refusal(f"{request.name} of shape {info.shape} has no {span}")

    def _refusal(self, cause: str) -> LoaderError:
        return LoaderError(PART, f"{self._path}: {cause}", "write the file again from the model that config.json names")
