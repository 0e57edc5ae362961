"""Copies the skeleton of a kind and gives it a name. Installs nothing and asks nobody.

The skeletons are working plugins called `my-plugin`, one folder a kind; `_certified` and `_every` hold what
several kinds share. This knows how that name is spelt in them, and nothing of what they do.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from srtkit.plugins.catalogue import OFFICIAL, normal_name
from srtkit.spec.errors import ConfigError
from srtkit.spec.versions import CONTRACTS
from srtkit_conformance.catalogue import KINDS, has_own_checks

TEMPLATES = Path(__file__).parents[1] / "templates"
"""In a checkout a link to plugins/_template; a wheel holds the files."""

PART = "srt plugin new"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def kinds() -> list[str]:
    """The kinds that have a skeleton."""
    return [kind for kind in CONTRACTS if (TEMPLATES / kind).is_dir()]


def create(kind: str, name: str, dest: Path) -> Path:
    """Write the plugin into a new folder of `dest`, named as those of srtkit's repository; returns that folder.

    `name` may be written with underscores. Raises `ConfigError` for a kind without a skeleton, a name that is
    no plugin name or that of one of srtkit's own, and a folder that exists.
    """
    name = name.replace("_", "-")
    if kind not in kinds():
        raise ConfigError(PART, f'there is no skeleton for the kind "{kind}"', f"kinds: {', '.join(kinds())}")
    if not NAME.fullmatch(name):
        raise ConfigError(PART, f'"{name}" is no plugin name', "lower-case letters and digits, words joined by hyphens")
    if official := OFFICIAL.get(f"{kind}:{name}"):
        raise ConfigError(PART, f"{kind}:{name} is {official}, and two of one name cannot be used", "take another name")
    folder = dest / f"{CONTRACTS[kind].short}_{name.replace('-', '_')}"
    if folder.exists():
        raise ConfigError(PART, f"{folder} exists already", "take another name, or another folder: --dest DIR")
    dest.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=dest) as unfinished:  # so that it is there whole or not at all
        made = Path(unfinished) / folder.name
        for place, text in _files(kind):
            target = made / renamed(place, kind, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("a", encoding="utf-8") as file:  # what is shared comes after the kind's own
                file.write(renamed(text, kind, name))
        made.rename(folder)
    return folder


def renamed(text: str, kind: str, name: str) -> str:
    """The text of a skeleton, about the plugin `name` instead."""
    for old, new in _spellings(kind, name).items():
        text = text.replace(old, new)
    return text


def next_steps(kind: str, name: str, folder: Path) -> str:
    """What to do with the new folder."""
    name = normal_name(name)
    prove = f"srt conformance run {kind}:{name}" if kind in KINDS else f"srt {name} --help"
    return "\n".join(
        [
            f"{folder}: {kind}:{name}, which works as it is; next:",
            f"  python -m pip install --editable {folder}",
            f"  python -m pytest {folder}",
            f"  {prove}",
            "and change authors and licence in its pyproject.toml; its README goes on from here",
        ]
    )


def _files(kind: str) -> Iterator[tuple[str, str]]:
    """Path and text of every file. A path that comes again is a part that is appended."""
    for part in (kind, "_certified", "_every") if kind in KINDS else (kind, "_every"):
        source = TEMPLATES / part
        for file in sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            yield file.relative_to(source).as_posix(), file.read_text("utf-8")


def _spellings(kind: str, name: str) -> dict[str, str]:
    """How name, kind and level are spelt in texts, identifiers and classes of a skeleton → how they shall be."""
    words = name.split("-")
    return {
        "my-plugin": name,
        "my_plugin": "_".join(words),
        "MyPlugin": "".join(word.capitalize() for word in words),
        "my-kind": kind,
        "my-level": str(int(has_own_checks(kind))),  # the mandatory checks, where they are written yet
    }
