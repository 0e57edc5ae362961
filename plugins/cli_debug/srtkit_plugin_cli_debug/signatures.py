"""Arguments of a library's functions, read from its source without an import, against those a plugin was written for.

A plugin that calls such a library ships `signatures.json` beside its descriptor:
`{"distribution": NAME, "versions": {VERSION: {"PATH.py:FUNCTION": "(name, other=default)"}}}`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit_plugin_cli_debug.plugins import file_of

FILE = "signatures.json"


@dataclass(frozen=True)
class Table:
    """What a plugin has recorded: the library's distribution, and by version its functions with their parameters."""

    distribution: str
    versions: Mapping[str, Mapping[str, str]]

    @property
    def names(self) -> set[str]:
        """ "PATH.py:FUNCTION" of every version."""
        return {name for functions in self.versions.values() for name in functions}

    def nearest(self, folder: Path, version: str) -> tuple[str, list[str]]:
        """The recorded version that a source tree of this version is most like, and the differences from it."""
        found = of_folder(folder, self.names)
        recorded = [version] if version in self.versions else list(self.versions)
        lines = {one: differences(self.versions[one], found) for one in recorded}
        best = min(lines, key=lambda one: len(lines[one]))
        return best, lines[best]


def table_of(part: str) -> Table | None:
    """The table of a plugin ("kind:name"); None if it ships none. Raises `PluginNotFound` and `PluginDuplicate`."""
    file = file_of(part, FILE)
    return None if file is None else Table(**json.loads(file.read_text("utf-8")))


def of_folder(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The parameters of each "PATH.py:FUNCTION" that a source tree defines at the top of a file."""
    found = {}
    for name in names:
        path, _, function = name.partition(":")
        file = folder / path
        if file.is_file() and (parameters := parameters_of(file.read_text("utf-8"), function)) is not None:
            found[name] = parameters
    return found


def parameters_of(source: str, function: str) -> str | None:
    """The parameters of the last definition of a function at the top of a file, without annotations; None without."""
    found = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == function]
    if not found:
        return None
    arguments = found[-1].args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if one is not None:
            one.annotation = None
    return f"({ast.unparse(arguments)})"


def differences(recorded: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """What differs from what was recorded, a line each."""
    return [
        f"{name}{found[name]}, recorded {parameters}" if name in found else f"{name} is not there"
        for name, parameters in recorded.items()
        if found.get(name) != parameters
    ]


def check(part: str, source: Path | None) -> int:
    """Print how the installed library, or a source tree, differs from what the plugin recorded. 1: it does.

    Raises `Unsupported` for a plugin without a table, `DeviceAbsent` where the library is not installed.
    """
    table = table_of(part)
    if table is None:
        raise Unsupported(part, f"ships no {FILE}: it calls no library whose arguments are recorded")
    if source is None:
        try:
            installed = metadata.distribution(table.distribution)
        except metadata.PackageNotFoundError as error:
            cause = f"{table.distribution} is not installed"
            raise DeviceAbsent(part, cause, "--source FOLDER reads an unpacked wheel or a checkout") from error
        folder, version = Path(str(installed.locate_file(""))), installed.version
    else:
        folder, version = source, "?"
    print(f"{table.distribution} {version} in {folder}")
    print(f"recorded: {', '.join(table.versions)}")
    nearest, lines = table.nearest(folder, version)
    if not lines:
        print(f"{len(table.versions[nearest])} functions, all as in {nearest}")
        return 0
    print("\n".join([f"most like {nearest}, from which differ", *(f"  {one}" for one in lines)]))
    return 1
