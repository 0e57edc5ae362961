"""One JSON schema for the whole file: core's options and those of given plugins. For editors and checks."""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from srtkit.config.settings import Settings


def merged_schema(options: Mapping[str, Mapping[str, type[BaseModel]]]) -> dict[str, Any]:
    """The schema of a settings file, where `options` maps kind → plugin name → the plugin's model.

    An options table is either a table a plugin or one plugin's own keys, as wiring reads it.
    """
    sections: dict[str, Any] = {}
    for kind, models in options.items():
        tables: dict[str, Any] = {name: (model, None) for name, model in models.items()}
        by_name = create_model(f"{kind}.options", __config__=ConfigDict(extra="forbid"), **tables)
        either: Any = reduce(or_, models.values(), by_name)
        section: Any = Settings.model_fields[kind].annotation
        sections[kind] = (create_model(kind, __base__=section, options=(either, None)), None)
    return create_model("Settings", __base__=Settings, **sections).model_json_schema()
