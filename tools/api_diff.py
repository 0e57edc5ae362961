"""What differs between two APIs as `tools.api_read` reads them, and whether it breaks who relies on the older one.

Strict where it cannot know: plugins implement some of these classes and call others, so a changed type, default
or decorator is a break in either direction. Knows neither versions nor files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.api_read import Api, Entry


@dataclass(frozen=True)
class Difference:
    """One difference: the dotted name below `srtkit.spec`, and a sentence about it."""

    where: str
    what: str
    breaks: bool

    def __str__(self) -> str:
        return f"{self.where} {self.what}"


def differences(old: Api, new: Api) -> list[Difference]:
    """Every difference, in the order of the modules."""
    found = [Difference(name, "was removed", True) for name in old if name not in new]
    found += [Difference(name, "was added", False) for name in new if name not in old]
    for name in (name for name in old if name in new):
        found += _members(name, old[name], new[name])
    return found


def _members(owner: str, old: dict[str, Entry], new: dict[str, Entry]) -> Iterator[Difference]:
    """What happened to the names of a module or class."""
    for name in old:
        where = f"{owner}.{name}"
        if name not in new:
            yield Difference(where, "was removed", True)
        elif old[name]["is"] != new[name]["is"]:
            yield Difference(where, f"was a {old[name]['is']}, now it is a {new[name]['is']}", True)
        else:
            yield from _changed(where, old[name], new[name])
    for name in (name for name in new if name not in old):
        abstract = "abstractmethod" in new[name].get("decorators", ())
        what = "was added, and implementations must have it" if abstract else "was added"
        yield Difference(f"{owner}.{name}", what, abstract)


def _changed(where: str, old: Entry, new: Entry) -> Iterator[Difference]:
    for aspect in ("decorators", "returns", "type", "value", "of"):
        if old.get(aspect) != new.get(aspect):
            gained = aspect == "value" and old["value"] is None  # a field that may be left out from now on
            yield Difference(where, f"has another {aspect}: {_was(old[aspect], new[aspect])}", not gained)
    if old["is"] == "function":
        yield from _parameters(where, old["parameters"], new["parameters"])
    if old["is"] == "class":
        yield from _bases(where, old["bases"], new["bases"])
        yield from _fields(where, old, new)


def _bases(where: str, old: Sequence[str], new: Sequence[str]) -> Iterator[Difference]:
    for base in old:
        if base not in new:
            yield Difference(where, f"is no {base} any more", True)
    for base in new:
        if base not in old:
            yield Difference(where, f"is a {base}, too", False)


def _fields(where: str, old: Entry, new: Entry) -> Iterator[Difference]:
    """The members of a class. New fields of a dataclass need a default, and a place behind those that were there."""
    placed = [name for name in new["members"] if name in old["members"]]
    data = next((one for one in new["decorators"] if one.startswith("dataclass")), "")
    positional = data and "kw_only=True" not in data
    last = max((list(new["members"]).index(name) for name in placed if _is_field(new["members"][name])), default=-1)
    for difference in _members(where, old["members"], new["members"]):
        name = difference.where.rpartition(".")[2]
        entry = new["members"].get(name)
        if not data or difference.breaks or name in old["members"] or entry is None or not _is_field(entry):
            yield difference
        elif entry["value"] is None:
            yield Difference(difference.where, "was added without a default", True)
        elif positional and list(new["members"]).index(name) < last:
            yield Difference(difference.where, "was added before fields that were there", True)
        else:
            yield difference
    if positional and placed != [name for name in old["members"] if name in new["members"]]:
        yield Difference(where, "has its members in another order", True)


def _is_field(entry: Entry) -> bool:
    return entry["is"] == "value" and entry["type"] is not None


def _parameters(where: str, old: Sequence[Entry], new: Sequence[Entry]) -> Iterator[Difference]:
    """An implementation of the older one would not take a new argument: any change of a method is a break.

    Of a function or `__init__`, which plugins only call, it is what its callers notice.
    """
    if old == new:
        return
    if old[:1] and old[0]["name"] in ("self", "cls") and not where.endswith(".__init__"):
        yield Difference(where, f"takes other parameters: {_was(_listed(old), _listed(new))}", True)
        return
    later = {one["name"]: one for one in new}
    kept = [one["name"] for one in new if one["name"] in {each["name"] for each in old}]
    same = [one["name"] for one in old] == kept and all(later.get(one["name"]) == one for one in old)
    added = [one for one in new if one["name"] not in kept]
    behind = new[: len(old)] == list(old) or all(one["how"] == "keyword-only" for one in added)
    if same and behind and all(one["default"] is not None for one in added):
        yield Difference(where, f"takes more: {_listed(added)}", False)
    else:
        yield Difference(where, f"takes other parameters: {_was(_listed(old), _listed(new))}", True)


def _listed(parameters: Sequence[Entry]) -> str:
    return ", ".join(
        f"{one['name']}: {one['type'] or '?'}" + ("" if one["default"] is None else f" = {one['default']}")
        for one in parameters
        if one["name"] != "self"
    )


def _was(old: object, new: object) -> str:
    return f"{_shown(old)} → {_shown(new)}"


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
