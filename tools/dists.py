"""The distributions of this repository: the one list that builds, installs and import rules are made from.

Knows where a distribution may live and what its parts must be called. Does not know what is installed.
`python -m tools.dists` prints the folders, one a line. Needs the standard library only.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("core", "conformance", "plugins/[!_]*")
"""Where a distribution may live; `plugins/_template` is a skeleton, not a distribution."""


@dataclass(frozen=True)
class Dist:
    """One folder with a pyproject.toml: what it is called and what it offers."""

    folder: Path
    project: dict[str, Any]

    @property
    def name(self) -> str:
        """Distribution name, e.g. `srtkit-plugin-cache-radix`."""
        return str(self.project["name"])

    @property
    def package(self) -> str:
        """Import package, e.g. `srtkit_plugin_cache_radix`; only core differs from its distribution's name."""
        return "srtkit" if self.name == "srtkit-core" else self.name.replace("-", "_")

    @property
    def is_plugin(self) -> bool:
        """True for what lies under `plugins/`."""
        return self.folder.parent.name == "plugins"

    @property
    def entry_points(self) -> dict[str, dict[str, str]]:
        """Entry-point group → name → module, as declared."""
        return dict(self.project.get("entry-points", {}))


def find(root: Path = ROOT) -> list[Dist]:
    """All distributions below `root`: core first, the others by folder name."""
    files = [file for place in PLACES for file in sorted(root.glob(f"{place}/pyproject.toml"))]
    return [Dist(file.parent, tomllib.loads(file.read_text("utf-8"))["project"]) for file in files]


def plugins(root: Path = ROOT) -> list[Dist]:
    """The distributions under `plugins/`."""
    return [dist for dist in find(root) if dist.is_plugin]


if __name__ == "__main__":
    for dist in find():
        print(dist.folder.relative_to(ROOT).as_posix())
