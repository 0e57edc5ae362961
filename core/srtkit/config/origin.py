"""Where a setting was written: a line of the file, `--set`, or an environment variable.

Turns pydantic's errors into `ConfigError`s that say so. Knows TOML's statements and pydantic's error
records, but no option by name.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, to_json

from srtkit.config.hints import did_you_mean
from srtkit.spec.errors import ConfigError

# A setting's place: ("attention", "options", "aiter", "prefer_layout").
KeyPath = tuple[str, ...]
M = TypeVar("M", bound=BaseModel)

_SECRET = ("key", "token", "secret", "password")
_WRONG_TYPE = ("int_type", "float_type", "bool_type", "string_type")


@dataclass(frozen=True)
class Origin:
    """What wrote which setting: key → "file:line", "--set a.b" or "SRT_A__B"; of () the file."""

    places: Mapping[KeyPath, str] = field(default_factory=dict)

    def where(self, path: KeyPath) -> str:
        """The place of this key, else of a key inside it, else of the table around it, else the file."""
        inside = (key for key in self.places if key[: len(path)] == path)
        around = (path[:length] for length in range(len(path), -1, -1))
        return next((self.places[key] for key in (path, *inside, *around) if key in self.places), "settings")

    def in_file(self, path: KeyPath) -> bool:
        """Whether a file says it, with types of its own, not the text of a flag or a variable."""
        return self.where(path).startswith(self.places.get((), "settings"))


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of every table and key of a valid TOML text.

    The text is cut into statements, each the shortest run of lines that parses by itself: strings and
    arrays over several lines, quoted keys and dotted keys then need no rules of their own.
    """
    lines = text.split("\n")
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    start = 0
    for end in range(1, len(lines) + 1):
        try:
            statement = tomllib.loads("\n".join(lines[start:end]))
        except tomllib.TOMLDecodeError:
            continue
        is_header = lines[start].lstrip().startswith("[")
        paths = [path if is_header else table + path for path in paths_of(statement)]
        for path in paths:
            found.setdefault(path, start + 1)
        if is_header:
            table = paths[-1]
        start = end
    return found


def paths_of(table: Mapping[str, Any], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key of a nested table, outer ones first."""
    for key, value in table.items():
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from paths_of(value, (*prefix, key))


def validated(model: type[M], table: Mapping[str, Any], origin: Origin, prefix: KeyPath = ()) -> M:
    """The table at `prefix` as its model. A file's values must have their type; texts of flags and variables get it.

    Raises `ConfigError` with all mistakes, each with its place.
    """
    found: dict[tuple[int | str, ...], ErrorDetails] = {}
    try:
        model.model_validate_json(to_json(table), strict=True)  # in JSON a list may stand for a tuple
    except ValidationError as error:
        typed = (record for record in error.errors(include_url=False) if record["type"] in _WRONG_TYPE)
        found = {one["loc"]: one for one in typed if origin.in_file((*prefix, *map(str, one["loc"])))}
    try:
        result = model.model_validate(table)
    except ValidationError as error:
        found |= {record["loc"]: record for record in error.errors(include_url=False)}
    mistakes = [_mistake(record, model, origin, prefix) for record in found.values()]
    if not mistakes:
        return result
    if len(mistakes) == 1:
        raise ConfigError(*mistakes[0])
    lines = [f"{where}: {cause}" + (f" ({remedy})" if remedy else "") for where, cause, remedy in mistakes]
    raise ConfigError("config", "\n  ".join([f"{len(mistakes)} mistakes", *lines]))


def _mistake(record: ErrorDetails, model: type[BaseModel], origin: Origin, prefix: KeyPath) -> tuple[str, str, str]:
    """Place, cause and remedy of one error record."""
    local = tuple(str(part) for part in record["loc"])
    path = prefix + local
    where, dotted = origin.where(path), ".".join(path)
    if record["type"] == "extra_forbidden":
        known = field_names(model, local[:-1])
        tables = sorted(name for name in known if not local[1:] and local[0] in field_names(model, (name,)))
        remedy = f"did you mean {' or '.join(f'{name}.{local[0]}' for name in tables)}?" if tables else ""
        remedy = remedy or did_you_mean(local[-1], known) or f"known here: {', '.join(sorted(known)) or 'no keys'}"
        if "options" in known:
            remedy += f"; a plugin's own options stand in [{path[0]}.options.NAME]"
        return where, f'unknown key "{path[-1]}"' + (f" in [{'.'.join(path[:-1])}]" if path[1:] else ""), remedy
    if record["type"] == "missing":
        return where, f"{dotted} is missing", f"write it in a settings file, or give --set {dotted}=…"
    message = "must be a table" if record["type"] == "model_type" else str(record["msg"]).removeprefix("Value error, ")
    secret = any(word in path[-1].lower() for word in _SECRET) if path else True
    shown = "" if secret or isinstance(record["input"], (dict, BaseModel)) else f", not {record['input']!r}"
    subject = "" if where.endswith(dotted) else f"{dotted}: "
    return where, f"{subject}{message}{shown}", ""


def field_names(model: type[BaseModel], path: Iterable[str]) -> frozenset[str]:
    """The keys that the table at `path` may have, empty where it is not one of the model's own."""
    for name in path:
        inner = model.model_fields[name].annotation if name in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return frozenset()
        model = inner
    return frozenset(model.model_fields)
