"""One JSON schema for the whole file: core's options and those of given plugins. For editors and checks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from srtkit.config.settings import Settings


def merged_schema(options: Mapping[tuple[str, str], type[BaseModel]]) -> dict[str, Any]:
    """The schema of a settings file, where `options` maps (kind, plugin name) to the plugin's model.

    An options table is either one plugin's own keys or a table a plugin, as wiring reads it.
    """
    schema = Settings.model_json_schema()
    defs: dict[str, Any] = schema["$defs"]
    for (kind, name), model in options.items():
        key = f"{kind}.{name}"
        table = model.model_json_schema(ref_template=f"#/$defs/{key}.{{model}}")
        defs |= {f"{key}.{inner}": value for inner, value in table.pop("$defs", {}).items()}
        defs[key] = table
    for kind in dict.fromkeys(kind for kind, _ in options):
        tables = {name: {"$ref": f"#/$defs/{kind}.{name}"} for of, name in options if of == kind}
        section = copy.deepcopy(defs[_section_name(kind)])
        by_name = {"type": "object", "properties": tables, "additionalProperties": False}
        section["properties"]["options"] = {"anyOf": [by_name, *tables.values()]}
        defs[kind] = section
        schema["properties"][kind] = {"$ref": f"#/$defs/{kind}"}
    return schema


def _section_name(kind: str) -> str:
    annotation = Settings.model_fields[kind].annotation
    assert isinstance(annotation, type)
    return annotation.__name__
