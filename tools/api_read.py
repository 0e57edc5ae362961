"""The public API of `srtkit.spec` as plain data: names, signatures, bases, fields, enum members; no docstring.

Reads the source with griffe and imports none of it. Knows no version and no rule of compatibility.

An API is module → name → entry. An entry says what it is: a class has members, a function parameters, a value
a type or, without one, the expression itself (an alias, a constant, an enum member).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

from srtkit.spec.versions import CONTRACTS

PACKAGE = "srtkit.spec"
SHARED = "shared"
"""What belongs to no kind alone: every module of the contract that does not carry a kind's name."""

Entry = dict[str, Any]
Api = dict[str, dict[str, Entry]]


def read(source: Path) -> dict[str, Api]:
    """Kind, or `SHARED`, → its part of the API that stands in `source`, the folder that holds `srtkit`."""
    package = griffe.load(
        PACKAGE, search_paths=[source], allow_inspection=False, force_inspection=False, try_relative_path=False
    )
    assert isinstance(package, griffe.Module)
    modules = {"__init__": package, **dict(sorted(package.modules.items()))}
    found: dict[str, Api] = {part: {} for part in (*CONTRACTS, SHARED)}
    for name, module in modules.items():
        found[name if name in CONTRACTS else SHARED][name] = dict(_members(module))
    return found


def _members(owner: griffe.Module | griffe.Class) -> Iterator[tuple[str, Entry]]:
    """What others may use, in the source's order: the position of a field is part of the contract."""
    exported = owner.exports or ()
    for name, member in owner.members.items():
        if isinstance(member, griffe.Alias):
            if name in exported:
                yield name, {"is": "import", "of": member.target_path}
        elif isinstance(member, griffe.Class) and not name.startswith("_"):
            yield name, _class(member)
        elif isinstance(member, griffe.Function) and (not name.startswith("_") or _is_written(member)):
            yield name, _function(member)
        elif isinstance(member, griffe.Attribute) and not name.startswith("_"):
            yield name, _value(member)


def _is_written(member: griffe.Function) -> bool:
    """Whether it is a method like `__bool__` that stands in the source; griffe adds `__init__` to dataclasses."""
    made = member.parent is not None and "dataclass" in member.parent.labels and member.name == "__init__"
    return member.name.startswith("__") and member.name.endswith("__") and not made


def _class(member: griffe.Class) -> Entry:
    return {
        "is": "class",
        "bases": [str(base) for base in member.bases],
        "decorators": _decorators(member),
        "members": dict(_members(member)),
    }


def _function(member: griffe.Function) -> Entry:
    return {
        "is": "function",
        "decorators": _decorators(member),
        "parameters": [_parameter(one) for one in member.parameters],
        "returns": _text(member.returns),
    }


def _parameter(one: griffe.Parameter) -> Entry:
    assert one.kind is not None
    return {"name": one.name, "how": one.kind.value, "type": _text(one.annotation), "default": _text(one.default)}


def _value(member: griffe.Attribute) -> Entry:
    """What `__init__` assigns has no value here: that is how, not what."""
    is_field = member.parent is not None and member.parent.is_class
    assigned = "class-attribute" in member.labels or not is_field
    shown = assigned and (is_field or member.annotation is None)
    kind = "property" if "property" in member.labels else "value"
    return {"is": kind, "type": _text(member.annotation), "value": _text(member.value) if shown else None}


def _decorators(member: griffe.Class | griffe.Function) -> list[str]:
    return [str(one.value) for one in member.decorators]


def _text(expression: str | griffe.Expr | None) -> str | None:
    return None if expression is None else str(expression)
