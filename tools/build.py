"""Builds distributions, all in one process: pip starts several for each, which takes a minute of forty.

`python -m tools.build DEST FOLDER...` builds for work in place: what `pip install --editable FOLDER` would make and
install, a wheel with the metadata, the entry points and a path to the folder. Knows nothing of what is in a wheel.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from hatchling.build import build_editable, build_wheel

Hook = Callable[[str], str]
"""Of PEP 517 and 660: builds what is in the working directory into a folder."""


def build(folders: Iterable[Path], dest: Path, hook: Hook = build_wheel) -> None:
    """Build each of `folders` into `dest`, which is emptied first. Raises what the backend does if one fails."""
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir(parents=True)
    for folder in folders:
        with contextlib.chdir(folder):
            hook(str(dest))


if __name__ == "__main__":
    build((Path(folder).resolve() for folder in sys.argv[2:]), Path(sys.argv[1]).resolve(), build_editable)
