"""Builds every distribution into dist/ and checks what came out.

Checks what a user would miss first: a wheel for each folder, its type marker, its entry points, metadata that an
index accepts.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tools.build import build
from tools.dists import ROOT, Dist, find

DIST = ROOT / "dist"


def wheel_of(dist: Dist, folder: Path = DIST) -> Path:
    """The wheel of a distribution, whatever its tag; before it is built, where a pure one will lie."""
    stem = f"{dist.name.replace('-', '_')}-{dist.project['version']}"
    return next(folder.glob(f"{stem}-*.whl"), folder / f"{stem}-py3-none-any.whl")


def faults(dist: Dist, wheel: Path) -> list[str]:
    """What is wrong with one wheel, a sentence each."""
    if not wheel.exists():
        return [f"{wheel.name} was not built"]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry_points = "".join(archive.read(n).decode() for n in names if n.endswith(".dist-info/entry_points.txt"))
    result = []
    if f"{dist.package}/py.typed" not in names:
        result.append(f"{wheel.name} has no {dist.package}/py.typed")
    if f"{dist.package}/__init__.py" not in names:
        result.append(f"{wheel.name} has no package {dist.package}")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        result.append(f"{wheel.name} has no license text")
    stray = sorted(n for n in {name.split("/")[0] for name in names} if n != dist.package and "dist-info" not in n)
    if stray:
        result.append(f"{wheel.name} installs more than its package: {', '.join(stray)}")
    result += [f"{wheel.name} lacks the group {group}" for group in dist.entry_points if group not in entry_points]
    return result


def main() -> int:
    """Builds and checks all; 1 if a wheel has a fault."""
    dists = find()
    build((dist.folder for dist in dists), DIST)
    found = [fault for dist in dists for fault in faults(dist, wheel_of(dist))]
    for fault in found:
        print(fault, file=sys.stderr)
    twine = [sys.executable, "-m", "twine", "check", "--strict", *sorted(map(str, DIST.glob("*.whl")))]
    checked = subprocess.run(twine, capture_output=True, text=True, check=False)
    if checked.returncode:
        print(checked.stdout, checked.stderr, file=sys.stderr)
    print(f"{len(dists)} wheels in {DIST.relative_to(ROOT)}/")
    return 1 if found or checked.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
