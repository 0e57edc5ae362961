"""Holds the contracts to their word: what differs from the released snapshots in core/api, and what that asks for.

An addition needs a new minor, a break a new major; a break of what kinds share needs one of every kind. An older
major that has a snapshot needs an adapter. Knows where snapshots and adapters lie and how versions count;
`tools.release` writes snapshots. Usage: python -m tools.api
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from srtkit.spec.versions import CONTRACTS
from tools.api_diff import Difference, differences
from tools.api_read import SHARED, Api, read
from tools.dists import ROOT

SOURCE = ROOT / "core"
SNAPSHOTS = ROOT / "core" / "api"
ADAPTERS = Path("srtkit", "plugins", "adapters")
"""Below the source: `<kind>_v<major>.py` makes of a plugin of that older major one of the present."""
SHARED_VERSION = (1, 1)
"""Of what belongs to no kind alone. The versions of the kinds stand in `srtkit.spec.versions`."""

Version = tuple[int, int]
VERSIONS: dict[str, Version] = {kind: (c.major, c.minor) for kind, c in CONTRACTS.items()} | {SHARED: SHARED_VERSION}


@dataclass(frozen=True)
class Part:
    """A kind, or what kinds share: the version it claims, its last released one, and what came since.

    `unadapted` are modules that would adapt plugins of older majors, and that are not there.
    """

    name: str
    version: Version
    released: Version | None
    since: tuple[Difference, ...] = ()
    unadapted: tuple[str, ...] = ()

    @property
    def breaks(self) -> bool:
        """Whether something that was released does not hold any more."""
        return any(one.breaks for one in self.since)

    @property
    def is_new_major(self) -> bool:
        """Whether it claims a major that was not released."""
        return self.released is not None and self.version[0] > self.released[0]

    def fault(self) -> str:
        """What is wrong with the version it claims, as one sentence; empty when nothing is."""
        if self.released is None:
            return f"has no snapshot: python -m tools.release {self.name}"
        (major, minor), last = self.released, text(self.released)
        if self.version not in (self.released, (major, minor + 1), (major + 1, 0)):
            return f"cannot be {text(self.version)} after {last}"
        if self.breaks and not self.is_new_major:
            return f"breaks {last}: it must become {major + 1}.0, and {last} needs an adapter"
        if self.since and self.version == self.released:
            return f"adds to {last}: it must become {major}.{minor + 1}"
        if self.unadapted:
            return f"is {text(self.version)}, and plugins of an older major need an adapter: {self.unadapted[0]}"
        return ""


def text(version: Version) -> str:
    """ "1.0"."""
    return f"{version[0]}.{version[1]}"


def folder(name: str, version: Version, snapshots: Path = SNAPSHOTS) -> Path:
    """Where the snapshot of one version lies: a file a module."""
    return snapshots / f"{name}-{text(version)}"


def released(name: str, snapshots: Path = SNAPSHOTS) -> list[Version]:
    """The versions that there are snapshots of, oldest first."""
    found = [path.name.rpartition("-")[2].partition(".") for path in snapshots.glob(f"{name}-*.*")]
    return sorted((int(major), int(minor)) for major, _, minor in found)


def snapshot(name: str, version: Version, snapshots: Path = SNAPSHOTS) -> Api:
    """A snapshot as it was written."""
    paths = sorted(folder(name, version, snapshots).glob("*.json"))
    return {path.stem: json.loads(path.read_text("utf-8")) for path in paths}


def parts(source: Path = SOURCE, snapshots: Path = SNAPSHOTS, versions: Mapping[str, Version] = VERSIONS) -> list[Part]:
    """Every kind and what they share, compared with its last snapshot."""
    found = []
    for name, api in read(source).items():
        last = max(released(name, snapshots), default=None)
        since = () if last is None else tuple(differences(snapshot(name, last, snapshots), api))
        unadapted = tuple(_unadapted(name, source, snapshots, versions[name]))
        found.append(Part(name, versions[name], last, since, unadapted))
    return found


def _unadapted(name: str, source: Path, snapshots: Path, version: Version) -> Iterator[str]:
    """What kinds share needs no adapter of its own: its break is one of every kind."""
    for major in sorted({major for major, _ in released(name, snapshots)} if name != SHARED else ()):
        adapter = ADAPTERS / f"{name}_v{major}.py"
        if major < version[0] and not (source / adapter).is_file():
            yield adapter.as_posix()


def faults(found: list[Part]) -> Iterator[str]:
    """One sentence a fault."""
    for part in found:
        if fault := part.fault():
            yield f"{part.name} {fault}"
    if any(part.name == SHARED and part.breaks for part in found):
        old = [part.name for part in found if part.name != SHARED and not part.is_new_major]
        if old:
            yield f"what kinds share breaks, so each needs a new major; these have none: {', '.join(old)}"


def main() -> int:
    """Prints every difference, then every fault; 1 if there is one."""
    found = parts()
    for part in found:
        for one in part.since:
            assert part.released is not None
            print(f"{part.name} since {text(part.released)}, {'breaks' if one.breaks else 'adds'}: {one}")
    wrong = list(faults(found))
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    if not wrong:
        changed = sum(bool(part.since) for part in found)
        print(f"{len(found)} APIs, {changed} of them changed since their snapshots, as their versions allow")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
