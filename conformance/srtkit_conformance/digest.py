"""One digest of all files that a distribution brings, the same from a wheel and from an editable install.

Also where a distribution carries the certificates of its plugins, which cannot contain their own digest.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path

from srtkit.plugins.catalogue import normal_name


def distribution_digest(distribution: str) -> str:
    """SHA-256 over names and contents of the files in its packages, hexadecimal; "" if it has none.

    Left out: bytecode, and certificates. Metadata is not part of it: an installer writes some of it.
    """
    files = sorted(_files(importlib.metadata.distribution(distribution)))
    if not files:
        return ""
    total = hashlib.sha256()
    for name, path in files:
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def certificate_path(distribution: str, kind: str, name: str) -> Path | None:
    """Where the distribution carries the report of its plugin `kind:name`, which must be one of its entry points.

    None for a plugin that is a single file: it has no folder of its own.
    """
    for entry in importlib.metadata.distribution(distribution).entry_points:
        if entry.group.startswith(f"srtkit.{kind}.") and normal_name(entry.name) == name:
            module = _top(entry)
            return None if module is None or module.name != "__init__.py" else module.parent / _certificate(entry)
    raise AssertionError(f"{distribution} does not offer {kind}:{name}")


def _certificate(entry: EntryPoint) -> str:
    """E.g. "conformance-attention-mychip.json" of `mychip` in the group `srtkit.attention.v1`."""
    return f"conformance-{entry.group.split('.')[1]}-{normal_name(entry.name)}.json"


def _top(entry: EntryPoint) -> Path | None:
    """The file of the top-level package or module that an entry point leads into."""
    spec = importlib.util.find_spec(entry.module.partition(".")[0])
    return None if spec is None or spec.origin is None else Path(spec.origin)


def _files(dist: Distribution) -> Iterable[tuple[str, Path]]:
    """Name relative to the place of installation, and path, of each file that counts."""
    certificates = {_certificate(entry) for entry in dist.entry_points if entry.group.startswith("srtkit.")}
    for origin in sorted({top for entry in dist.entry_points if (top := _top(entry)) is not None}):
        if origin.name != "__init__.py":
            yield origin.name, origin
            continue
        folder = origin.parent
        left_out = {folder / name for name in certificates}
        for path in folder.rglob("*"):
            counts = path.is_file() and "__pycache__" not in path.parts and path not in left_out
            if counts and path.suffix != ".pyc":
                yield path.relative_to(folder.parent).as_posix(), path
