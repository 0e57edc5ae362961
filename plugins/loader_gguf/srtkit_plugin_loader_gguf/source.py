"""From a path to the GGUF files behind it: one file, a folder with one, or the parts of a split one.

Knows how files are named and split, and merges the headers of the parts. No numpy, no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from srtkit_plugin_loader_gguf.header import Header, TensorEntry, read_header, refusal

PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class Source:
    """One model: the metadata of its first file, the tensors of all of them."""

    path: Path
    headers: tuple[Header, ...]

    @property
    def metadata(self) -> dict[str, Any]:
        """The keys of the first file; the other parts repeat none that matter."""
        return self.headers[0].metadata

    @cached_property
    def tensors(self) -> dict[str, tuple[Path, TensorEntry]]:
        """GGUF name → file and entry, in file order. A name that two parts hold is refused on opening."""
        return {entry.name: (header.path, entry) for header in self.headers for entry in header.tensors}


def is_gguf(path: Path) -> bool:
    """Whether `path` is a GGUF file, or a folder that holds GGUF files and no safetensors."""
    if path.is_dir():
        return any(path.glob("*.gguf")) and not any(path.glob("*.safetensors"))
    return path.suffix == ".gguf" and path.is_file()


def open_source(path: Path) -> Source:
    """Read the headers behind `path`. Raises `LoaderError` when it is not one whole model."""
    source = Source(path, tuple(read_header(file) for file in _files(path)))
    first = source.headers[0]
    count = first.metadata.get("split.count") or 1
    if count != len(source.headers):
        raise refusal(
            first.path,
            f"is one of {count} parts, and its name does not say which",
            "name the parts <name>-00001-of-0000N.gguf again",
        )
    stored = sum(len(header.tensors) for header in source.headers)
    if stored != len(source.tensors):
        raise refusal(path, "two parts hold a tensor of the same name", "fetch the parts again")
    if stored != (first.metadata.get("split.tensors.count") or stored):
        raise refusal(path, f"holds {stored} tensors, not as many as its first part announces", "fetch them again")
    return source


def _files(path: Path) -> list[Path]:
    """The files of one model, in order of their parts."""
    if path.is_dir():
        found = sorted(path.glob("*.gguf"))
        whole = [file for file in found if not PART.fullmatch(file.name)]
        firsts = [file for file in found if file.name.partition("-00001-of-")[1]]
        choices = whole + firsts
        if len(choices) != 1:
            names = ", ".join(file.name for file in choices) or "none with a first part"
            raise refusal(path, f"holds not one GGUF model but {names}", "name one file as the source")
        path = choices[0]
    part = PART.fullmatch(path.name)
    if part is None:
        return [path]
    count = int(part["count"])
    files = [path.with_name(f"{part['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise refusal(path, f"the parts {', '.join(missing)} are missing beside it", "fetch all parts of the model")
    return files
