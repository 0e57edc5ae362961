"""Reads slices of tensors out of safetensors files. The heavy module: safetensors and torch.

The library maps the files and checks their headers: sizes, offsets, dtypes. Nothing is copied here; a slice
touches only its own pages. Knows no config.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from srtkit.spec.model_loader import ModelLoader, ModelLoaderBuild, WeightInfo, WeightRequest
from srtkit_plugin_loader_safetensors.folder import refusal, weight_files

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


@final
class SafetensorsLoader(ModelLoader):
    """An opened folder. Tensors are views of the mapped files; they are not to be written to."""

    def __init__(self, build: ModelLoaderBuild) -> None:
        """Open every file. Raises `LoaderError` for one that is damaged or lacks what the index promises."""
        self._folder = build.path
        self._files: dict[Path, Any] = {}
        self._place: dict[str, Path] = {}
        self._infos: dict[str, WeightInfo] = {}
        spare: dict[str, Path] = {}
        for path, promised in weight_files(build.path).items():
            self._files[path] = _open(path)
            spare |= dict.fromkeys(self._take(path, promised), path)
        for name in sorted(spare.keys() & self._place.keys()):
            cause = f"holds {name}, which the index puts into {self._place[name].name}"
            raise refusal(spare[name], cause, "fetch the whole model again")

    def index(self) -> Sequence[WeightInfo]:
        """What is stored, file after file, in the order of each file."""
        return list(self._infos.values())

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[tuple[WeightRequest, Tensor]]:
        """Yield every request in file order, as `ModelLoader.read` says."""
        order = {name: place for place, name in enumerate(self._infos)}
        wanted = list(requests)
        for request in wanted:
            self._check(request)
        for request in sorted(wanted, key=lambda request: order[request.name]):
            yield request, self._tensor(request)

    def close(self) -> None:
        """Close the files. Tensors that were handed out stay valid: they keep their map."""
        self._files.clear()

    def _take(self, path: Path, promised: frozenset[str] | None) -> list[str]:
        """Add what one file holds, in its order; return the names that the index does not mention for it."""
        file = self._files[path]
        names = file.offset_keys()
        if promised is not None and (absent := sorted(promised - set(names))):
            shown = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
            raise refusal(path, f"lacks {shown}, which the index puts there", "fetch the whole model again")
        taken = names if promised is None else [name for name in names if name in promised]
        for name in taken:
            stored = file.get_slice(name)
            dtype = stored.get_dtype()
            if dtype not in DTYPES:
                raise refusal(path, f"{name} has the dtype {dtype}, which is not known (known: {', '.join(DTYPES)})")
            self._place[name] = path
            self._infos[name] = WeightInfo(name, tuple(stored.get_shape()), DTYPES[dtype])
        return [name for name in names if promised is not None and name not in promised]

    def _check(self, request: WeightRequest) -> None:
        info = self._infos.get(request.name)
        if info is None:
            raise refusal(
                self._folder, f"holds no weight {request.name}", "fetch the whole model, or check config.json"
            )
        if request.shape not in ((), info.shape):
            cause = f"{request.name} has the shape {list(info.shape)}, the model expects {list(request.shape)}"
            raise refusal(self._folder, cause, "config.json and the weights belong to different models")
        if request.dim is not None and not (
            0 <= request.dim < len(info.shape) and 0 <= request.start < request.stop <= info.shape[request.dim]
        ):
            span = f"[{request.start}, {request.stop}) of dimension {request.dim}"
            raise refusal(self._folder, f"{request.name} of shape {list(info.shape)} has no {span}")

    def _tensor(self, request: WeightRequest) -> Tensor:
        path = self._place[request.name]
        file = self._files.get(path)
        if file is None:
            raise refusal(path, "was closed while it was being read")
        try:
            if request.dim is None:
                whole: Tensor = file.get_tensor(request.name)
                return whole
            part: Tensor = file.get_slice(request.name)[
                (slice(None),) * request.dim + (slice(request.start, request.stop),)
            ]
        except (SafetensorError, OSError) as error:
            raise refusal(path, f"{request.name} cannot be read: {error}", "fetch the file again") from error
        return part


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise refusal(path, f"is not a sound safetensors file: {error}", "fetch the file again") from error
