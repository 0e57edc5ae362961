"""Starts a plugin: copies the skeleton of its kind and gives it a name.

`python -m tools.new_plugin attention mychip --dest DIR`, or `make new-plugin KIND=attention NAME=mychip`.
The skeletons are working plugins called `my-plugin`, one folder a kind; this knows only how that name is
spelt in them. Installs nothing.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from srtkit.spec.versions import CONTRACTS
from tools.dists import ROOT

TEMPLATES = ROOT / "plugins" / "_template"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class Refused(Exception):
    """The plugin cannot be made; the text says why."""


def kinds() -> list[str]:
    """The kinds that have a skeleton."""
    return [kind for kind in CONTRACTS if (TEMPLATES / kind).is_dir()]


def spellings(name: str) -> dict[str, str]:
    """How the skeleton's name is spelt in texts, identifiers and classes → how `name` is."""
    words = name.split("-")
    return {
        "my-plugin": name,
        "my_plugin": "_".join(words),
        "MyPlugin": "".join(word.capitalize() for word in words),
    }


def renamed(text: str, name: str) -> str:
    """The text of a skeleton, about the plugin `name` instead."""
    for old, new in spellings(name).items():
        text = text.replace(old, new)
    return text


def create(kind: str, name: str, dest: Path) -> Path:
    """Write the plugin into a new folder of `dest`, named as those of this repository; returns that folder.

    `name` may be written with underscores. Raises `Refused` for a kind without a skeleton, a name that is
    no plugin name, and a folder that exists.
    """
    name = name.replace("_", "-")
    if kind not in kinds():
        raise Refused(f'there is no skeleton for the kind "{kind}"; there are: {", ".join(kinds())}')
    if not NAME.fullmatch(name):
        raise Refused(f'"{name}" is no plugin name: lower-case letters and digits, words joined by hyphens')
    folder = dest / f"{CONTRACTS[kind].short}_{name.replace('-', '_')}"
    if folder.exists():
        raise Refused(f"{folder} exists already")
    source = TEMPLATES / kind
    for file in sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        target = folder / renamed(file.relative_to(source).as_posix(), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(renamed(file.read_text("utf-8"), name), "utf-8")
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    return folder


def next_steps(kind: str, name: str, folder: Path) -> str:
    """What to do with the new folder."""
    name = name.replace("_", "-")
    try_it = f"srt {name} --help" if kind == "cli" else f"srt plugins show {kind}:{name}"
    return "\n".join(
        [
            f"{folder}: {kind}:{name}, which works as it is; next:",
            f"  python -m pip install --editable {folder}",
            f"  python -m pytest {folder}",
            f"  {try_it}",
            "and change authors and licence in its pyproject.toml; docs/plugins.md goes on from here",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Make one plugin; 2 if it cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m tools.new_plugin", description="Start a plugin from a skeleton.")
    parser.add_argument("kind", metavar="KIND", help=", ".join(kinds()))
    parser.add_argument("name", metavar="NAME", help="what a settings file will call it, e.g. mychip")
    parser.add_argument("--dest", type=Path, default=ROOT / "plugins", help="put its folder here (default: plugins/)")
    arguments = parser.parse_args(argv)
    try:
        folder = create(arguments.kind, arguments.name, arguments.dest)
    except Refused as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 2
    print(next_steps(arguments.kind, arguments.name, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
