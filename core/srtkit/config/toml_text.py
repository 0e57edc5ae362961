"""Options as commented TOML lines, from a pydantic model. Writes text; reads none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined


def toml_value(value: object) -> str:
    """A TOML literal; "…" for what has no value."""
    if value is None or value is PydanticUndefined:
        return "…"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)


def option_lines(model: type[BaseModel], chosen: Mapping[str, Any] | None = None) -> Iterator[str]:
    """A line an option: those in `chosen` are set, the others stand as comments with their defaults."""
    chosen = chosen or {}
    for key, field in model.model_fields.items():
        value = chosen[key] if key in chosen else field.get_default(call_default_factory=True)
        doc = f"  # {field.description}" if field.description else ""
        yield f"{'' if key in chosen else '# '}{key} = {toml_value(value)}{doc}"
