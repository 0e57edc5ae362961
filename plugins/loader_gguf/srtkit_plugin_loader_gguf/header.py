"""The header of one GGUF file: metadata and the table of tensors, without reading a weight.

Own parser and no numpy: the `gguf` package's reader makes several array objects for every token and merge,
which takes seconds for a vocabulary of usual size. Knows nothing of architectures or quantisation.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srtkit.spec.errors import LoaderError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF's value types of fixed size → their `struct` format."""
STRING, ARRAY = 8, 9
MAX_DIMS = 8
U64 = struct.Struct("<Q")


@dataclass(frozen=True)
class TensorEntry:
    """One stored tensor. `shape` has the slowest dimension first (GGUF stores it last); `type` is ggml's
    number of the form; `start` is the position of its first byte in the file."""

    name: str
    shape: tuple[int, ...]
    type: int
    start: int


@dataclass(frozen=True)
class Header:
    """What a file says before its weights."""

    path: Path
    metadata: dict[str, Any]
    tensors: tuple[TensorEntry, ...]


def read_header(path: Path) -> Header:
    """Parse the header of `path`. Raises `LoaderError` naming the file when it is damaged or truncated."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except OSError as error:
        raise refusal(path, f"cannot be opened: {error.strerror}") from error
    except (ValueError, OverflowError, struct.error) as error:
        # ValueError: our own, or an empty file cannot be mapped, or a string is not UTF-8; the others: a
        # position past the end.
        raise damaged(path, str(error)) from error


def refusal(path: Path, cause: str, remedy: str = "") -> LoaderError:
    """An error about this file or folder."""
    return LoaderError("model_loader:gguf", f"{path}: {cause}", remedy)


def damaged(path: Path, why: str) -> LoaderError:
    """The error for a file that is not what it should be."""
    return refusal(path, f"not a sound GGUF file: {why}", "fetch the file again")


def _parse(path: Path, data: mmap.mmap) -> Header:
    cursor = _Cursor(data)
    if cursor.take(4) != MAGIC:
        raise ValueError("it does not start with 'GGUF'")
    version = cursor.scalar(4)
    if version not in VERSIONS:
        raise ValueError(f"version {version:#x} is not among {VERSIONS} (or the file is big-endian)")
    tensor_count, key_count = cursor.scalar(10), cursor.scalar(10)
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.string()
        if key in metadata:
            raise ValueError(f"the key {key!r} stands there twice")
        metadata[key] = cursor.value(cursor.scalar(4))
    table = [_tensor(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
        raise ValueError(f"general.alignment is {alignment!r}, not a multiple of 8")
    base = -(-cursor.at // alignment) * alignment
    return Header(path, metadata, _placed(table, base, alignment, len(data)))


def _tensor(cursor: _Cursor) -> TensorEntry:
    """One row of the table; `start` is still relative to the data section."""
    name = cursor.string()
    dims = cursor.scalar(4)
    if not 0 < dims <= MAX_DIMS:
        raise ValueError(f"the tensor {name!r} has {dims} dimensions")
    shape = tuple(cursor.scalar(10) for _ in range(dims))[::-1]
    return TensorEntry(name, shape, cursor.scalar(4), cursor.scalar(10))


def _placed(table: list[TensorEntry], base: int, alignment: int, size: int) -> tuple[TensorEntry, ...]:
    """The table with positions in the file, in their order, each checked to lie in it."""
    names: set[str] = set()
    placed = []
    for entry in table:
        if entry.name in names:
            raise ValueError(f"the tensor {entry.name!r} stands there twice")
        names.add(entry.name)
        if entry.start % alignment:
            raise ValueError(f"the tensor {entry.name!r} is not aligned to {alignment} bytes")
        if base + entry.start >= size:
            raise ValueError(f"it ends at byte {size}, before the tensor {entry.name!r} starts")
        placed.append(TensorEntry(entry.name, entry.shape, entry.type, base + entry.start))
    return tuple(sorted(placed, key=lambda entry: entry.start))


class _Cursor:
    """Reads little-endian values one after the other. Counts are checked before anything is made of them."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise ValueError(f"it ends at byte {len(self.data)}, in the middle of the header")
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def scalar(self, kind: int) -> Any:
        form = struct.Struct("<" + SCALARS[kind])
        return form.unpack(self.take(form.size))[0]

    def string(self) -> str:
        return self.take(U64.unpack(self.take(8))[0]).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self.scalar(kind)
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            raise ValueError(f"a metadata value has the unknown type {kind}")
        element, count = self.scalar(4), self.scalar(10)
        if element in SCALARS:
            size = struct.calcsize("<" + SCALARS[element])
            return struct.unpack(f"<{count}{SCALARS[element]}", self.take(count * size))
        if element == STRING:
            return self._strings(count)
        raise ValueError(f"a metadata array has elements of the unknown type {element}")

    def _strings(self, count: int) -> tuple[str, ...]:
        """The hot loop: hundreds of thousands of tokens and merges."""
        if count * U64.size > len(self.data) - self.at:
            raise ValueError(f"it is too short for an array of {count} strings")
        data, at, length = self.data, self.at, U64.unpack_from
        strings = []
        for _ in range(count):
            start = at + 8
            at = start + length(data, at)[0]
            strings.append(data[start:at].decode("utf-8"))
        if at > len(data):
            raise ValueError(f"it ends at byte {len(data)}, inside an array of strings")
        self.at = at
        return tuple(strings)
