"""One digest of all files that a distribution brings, the same from a wheel and from an editable install."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from pathlib import Path

CERTIFICATE = "conformance.json"
"""A report that a distribution carries about itself; it cannot contain its own digest."""


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


def _files(dist: importlib.metadata.Distribution) -> Iterable[tuple[str, Path]]:
    """Name relative to the place of installation, and path, of each file that counts."""
    for top in sorted({entry.module.partition(".")[0] for entry in dist.entry_points}):
        spec = importlib.util.find_spec(top)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        if spec.submodule_search_locations is None:
            yield origin.name, origin
            continue
        folder = origin.parent
        for path in folder.rglob("*"):
            counts = path.is_file() and "__pycache__" not in path.parts and path.name != CERTIFICATE
            if counts and path.suffix != ".pyc":
                yield path.relative_to(folder.parent).as_posix(), path
