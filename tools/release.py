"""Writes the snapshot of a contract's present version to core/api, and refuses to change one that is there.

Usage: python -m tools.release KIND … (a kind, or `shared`). The version is the one the source claims.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.api import SNAPSHOTS, SOURCE, VERSIONS, Version, folder, parts, snapshot, text
from tools.api_read import Api, read


class Refused(Exception):
    """Why no snapshot was written."""


def release(
    name: str, source: Path = SOURCE, snapshots: Path = SNAPSHOTS, versions: Mapping[str, Version] = VERSIONS
) -> Path:
    """Write the snapshot of `name`; one that says the same already is left alone. Returns its folder.

    Raises `Refused` if that version was released with another API, or does not follow the last one.
    """
    version, api = versions[name], read(source)[name]
    target = folder(name, version, snapshots)
    if target.exists():
        if snapshot(name, version, snapshots) != api:
            raise Refused(f"{name} {text(version)} is released and stays as it was: see `make api` for what differs")
        return target
    (part,) = (one for one in parts(source, snapshots, versions) if one.name == name)
    if part.released is not None and (fault := part.fault()):
        raise Refused(f"{name} {fault}")
    write(target, api)
    return target


def write(target: Path, api: Api) -> None:
    """One file a module, in the source's order."""
    target.mkdir(parents=True)
    for module, names in api.items():
        (target / f"{module}.json").write_text(json.dumps(names, indent=1) + "\n", "utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Writes snapshots; 1 if one is refused."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description="Write the snapshot of a contract.")
    parser.add_argument("name", nargs="+", choices=tuple(VERSIONS), metavar="KIND", help=", ".join(VERSIONS))
    for name in parser.parse_args(argv).name:
        try:
            print(release(name))
        except Refused as why:
            print(why, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
