"""Finding one plugin by name, its descriptor and its files. A dump names what it needs: there is no settings file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from srtkit.spec.errors import ConfigError, PluginBroken, PluginDuplicate, PluginNotFound
from srtkit.spec.versions import CONTRACTS


def descriptor_of(kind: str, name: str) -> Any:
    """The descriptor of "kind:name"; `name` may have underscores.

    Raises `PluginNotFound`, `PluginDuplicate`, and `PluginBroken` when its module cannot be imported.
    """
    found = _entry(kind, name)
    try:
        hook: Callable[[], Any] = vars(found.load())[f"srtkit_{kind}"]
        return hook()
    except Exception as error:  # whatever an author's module raises when it is imported
        part = f"{kind}:{name}"
        raise PluginBroken(part, f"raised {type(error).__name__}: {error} ({found.value})") from error


def file_of(part: str, name: str) -> Path | None:
    """A file that a plugin ("kind:name") ships beside its descriptor, which is not imported; None if it has none.

    Raises `PluginNotFound` and `PluginDuplicate`.
    """
    kind, _, plugin = part.partition(":")
    package = find_spec(_entry(kind, plugin).module.partition(".")[0])
    places = [] if package is None else package.submodule_search_locations or []
    return next((Path(place, name) for place in places if Path(place, name).is_file()), None)


def _entry(kind: str, name: str) -> metadata.EntryPoint:
    part, wanted = f"{kind}:{name}", name.replace("_", "-")
    if kind not in CONTRACTS:
        raise PluginNotFound(part, "there is no such kind of plugin", f"kinds: {', '.join(sorted(CONTRACTS))}")
    offers = metadata.entry_points(group=f"srtkit.{kind}.v{CONTRACTS[kind].major}")
    found = [one for one in offers if one.name.replace("_", "-") == wanted]
    if not found:
        installed = ", ".join(sorted({one.name for one in offers}))
        raise PluginNotFound(part, "no installed distribution offers it", f"installed: {installed or 'none'}")
    if len({one.value for one in found}) > 1:
        by = " and ".join(one.dist.name for one in found if one.dist)
        raise PluginDuplicate(part, f"is offered more than once: by {by}", "uninstall one of them")
    return found[0]


def options_of(part: str, model: type[BaseModel], sets: Sequence[str]) -> BaseModel:
    """The plugin's options from `key=value` texts. Raises `ConfigError` naming each that is wrong."""
    given = dict(one.partition("=")[::2] for one in sets)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        keys = ", ".join(model.model_fields) or "none"
        raise ConfigError(part, wrong, f"its options: {keys}") from None
