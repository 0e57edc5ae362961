"""Reads and dequantises the tensors of a GGUF model. The heavy module: numpy, `gguf` and torch.

A row never shares a block with another, so rows are put into order and sliced as raw bytes, and only what
was asked for is dequantised. Does not know configs or tokenizers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from srtkit.spec.model_loader import ModelLoader, ModelLoaderBuild, WeightInfo, WeightRequest
from srtkit_plugin_loader_gguf.config import REMEDY
from srtkit_plugin_loader_gguf.header import TensorEntry, damaged, refusal
from srtkit_plugin_loader_gguf.names import ROPE_FACTORS, canonical, interleaved_heads
from srtkit_plugin_loader_gguf.source import open_source

Bytes = npt.NDArray[np.uint8]
PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
CHUNK = 1 << 16
"""Elements dequantised by one call: a multiple of every block, small enough that its temporaries stay in cache."""
MAX_THREADS = 8


@dataclass(frozen=True)
class Stored:
    """One tensor and how to read it: `block` elements in `block_bytes` bytes; `heads`: see `interleaved_heads`."""

    path: Path
    entry: TensorEntry
    type: GGMLQuantizationType
    block: int
    block_bytes: int
    heads: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The stored shape; that of a vector is [n, 1], so that everything has rows."""
        return self.entry.shape if len(self.entry.shape) > 1 else (*self.entry.shape, 1)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, along the last dimension."""
        return self.shape[-1] // self.block * self.block_bytes

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return prod(self.shape[:-1]) * self.row_bytes


@final
class GgufLoader(ModelLoader):
    """An opened GGUF model. Quantised weights come as float32, plain ones as they are stored."""

    def __init__(self, build: ModelLoaderBuild) -> None:
        """Raises `LoaderError` for a tensor of unknown form or one that passes the end of its file."""
        source = open_source(build.path)
        self._path = build.path
        self._files = {header.path: np.memmap(header.path, np.uint8, mode="c") for header in source.headers}
        architecture = str(source.metadata.get("general.architecture"))
        heads, kv_heads = build.config["num_attention_heads"], build.config["num_key_value_heads"]
        self._stored: dict[str, Stored] = {}
        for gguf_name, (path, entry) in source.tensors.items():
            name = canonical(gguf_name)
            if name is not None:
                permuted = interleaved_heads(architecture, gguf_name, heads, kv_heads)
                self._stored[name] = _stored(path, entry, permuted, len(self._files[path]))
            elif gguf_name != ROPE_FACTORS:
                raise refusal(path, f"the tensor {gguf_name} is not one of a dense decoder", REMEDY)
        self._room = np.empty(0, np.float32)
        self._pool = ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), "gguf-dequantise")

    def index(self) -> Sequence[WeightInfo]:
        """What is stored, under canonical names, in file order."""
        return [_info(name, stored) for name, stored in self._stored.items()]

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[tuple[WeightRequest, torch.Tensor]]:
        """Yield every request in file order, as `ModelLoader.read` says."""
        order = {name: place for place, name in enumerate(self._stored)}
        wanted = list(requests)
        for request in wanted:
            self._check(request)
        for request in sorted(wanted, key=lambda request: order[request.name]):
            yield request, self._tensor(self._stored[request.name], request)

    def close(self) -> None:
        """Drop the maps and the buffer."""
        self._files.clear()
        self._room = np.empty(0, np.float32)
        self._pool.shutdown()

    def _check(self, request: WeightRequest) -> None:
        stored = self._stored.get(request.name)
        if stored is None:
            raise refusal(self._path, f"holds no weight {request.name}", "fetch the whole model, or another form of it")
        shape = stored.entry.shape
        if request.shape not in ((), shape):
            cause = f"{request.name} has the shape {list(shape)}, the model expects {list(request.shape)}"
            raise refusal(self._path, cause, "the file's metadata and weights belong to different models")
        if request.dim is not None and not (
            0 <= request.dim < len(shape) and 0 <= request.start < request.stop <= shape[request.dim]
        ):
            span = f"[{request.start}, {request.stop}) of dimension {request.dim}"
            raise refusal(self._path, f"{request.name} of shape {list(shape)} has no {span}")

    def _tensor(self, stored: Stored, request: WeightRequest) -> torch.Tensor:
        """The requested slice: pick rows or blocks as bytes, dequantise, cut what the blocks had too much."""
        file = self._files.get(stored.path)
        if file is None:
            raise refusal(stored.path, "was closed while it was being read")
        raw: Bytes = file[stored.entry.start : stored.entry.start + stored.nbytes]
        raw = raw.reshape(*stored.shape[:-1], stored.row_bytes)
        last, start, stop = len(stored.shape) - 1, request.start, request.stop
        first_block = start // stored.block
        if request.dim == last:
            end_block = -(-stop // stored.block)
            raw = raw[..., first_block * stored.block_bytes : end_block * stored.block_bytes]
        if stored.heads:
            order = _row_order(stored.shape[0], stored.heads)
            raw = raw[order[start:stop] if request.dim == 0 else order]
        elif request.dim is not None and request.dim < last:
            raw = raw[(slice(None),) * request.dim + (slice(start, stop),)]
        tensor = self._values(raw, stored)
        if request.dim == last:
            tensor = tensor.narrow(-1, start - first_block * stored.block, stop - start)
        return tensor if len(stored.entry.shape) > 1 else tensor.squeeze(-1)

    def _values(self, raw: Bytes, stored: Stored) -> torch.Tensor:
        """Bytes [..., b] → values [..., b / block_bytes * block]: a view of the file if possible, else the buffer."""
        flat = np.ascontiguousarray(raw).reshape(-1)
        shape = (*raw.shape[:-1], raw.shape[-1] // stored.block_bytes * stored.block)
        if stored.type in PLAIN:
            return torch.from_numpy(flat).view(PLAIN[stored.type]).view(shape)
        count = prod(shape)
        if count > self._room.size:
            self._room = np.empty(count, np.float32)
        out = self._room[:count]
        step = CHUNK // stored.block * stored.block_bytes

        def one(start: int) -> None:
            # One long row: the library works through groups of 16 rows, which is slow for short ones.
            values = dequantize(flat[start : start + step].reshape(1, -1), stored.type)
            at = start // stored.block_bytes * stored.block
            out[at : at + values.size] = values[0]

        for _ in self._pool.map(one, range(0, flat.size, step)):
            pass
        return torch.from_numpy(out).view(shape)


def _stored(path: Path, entry: TensorEntry, heads: int, size: int) -> Stored:
    """Check one row of the table against the forms the library knows and the size of the file."""
    try:
        kind = GGMLQuantizationType(entry.type)
    except ValueError:
        raise refusal(path, f"{entry.name} has the unknown form {entry.type}", "upgrade the package gguf") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    stored = Stored(path, entry, kind, block, block_bytes, heads)
    if stored.shape[-1] % block:
        raise damaged(path, f"rows of {entry.name} are not whole blocks of {kind.name}")
    if heads and stored.shape[0] % (2 * heads):
        raise damaged(path, f"the {stored.shape[0]} rows of {entry.name} are not {heads} heads of even size")
    if entry.start + stored.nbytes > size:
        raise damaged(path, f"it ends at byte {size}, inside the tensor {entry.name}")
    if kind not in PLAIN:
        _check_dequantisable(path, entry.name, kind, block_bytes)
    return stored


def _check_dequantisable(path: Path, name: str, kind: GGMLQuantizationType, block_bytes: int) -> None:
    """Try one block of zeros, so that a form the library cannot read is refused before anything is loaded."""
    try:
        dequantize(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        remedy = "upgrade the package gguf, or take a file of another quantisation"
        raise refusal(path, f"{name} is stored as {kind.name}, which the package gguf cannot read", remedy) from None


def _row_order(rows: int, heads: int) -> npt.NDArray[np.int64]:
    """For each row in canonical order the stored row that holds it: pairs (i, i + d/2) of a head stand together."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _info(name: str, stored: Stored) -> WeightInfo:
    plain: Any = PLAIN.get(stored.type)
    if plain is None:
        return WeightInfo(name, stored.entry.shape, "float32", stored.type.name)
    return WeightInfo(name, stored.entry.shape, str(plain).removeprefix("torch."))
