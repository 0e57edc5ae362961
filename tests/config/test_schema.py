"""The merged schema: every table of the file, with the options of the given plugins in either form."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from srtkit.config.schema import merged_schema
from srtkit.config.settings import Settings


class Inner(BaseModel):
    """A nested table."""

    depth: int = 1


class Options(BaseModel):
    """A plugin's options."""

    model_config = ConfigDict(extra="forbid")
    size: int = 1
    inner: Inner = Inner()


class Other(BaseModel):
    """Another plugin's options, with a nested model of the same name."""

    inner: Inner = Inner()


def at(schema: dict[str, Any], *path: str) -> Any:
    """The node at a path of property names, following references; every reference must have a target."""
    node: Any = schema
    for name in path:
        node = follow(schema, node)["properties"][name]
    return follow(schema, node)


def follow(schema: dict[str, Any], node: Any) -> Any:
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].removeprefix("#/$defs/")]
    return node


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def test_every_table_of_the_file_is_there_with_core_alone() -> None:
    schema = merged_schema({})
    assert schema["properties"].keys() == Settings.model_fields.keys()
    assert at(schema, "server", "port")["maximum"] == 65535
    assert schema["additionalProperties"] is False
    forms = [form.get("type") for form in at(schema, "ops", "use")["anyOf"]]
    assert forms == ["string", "array", "null"]


def test_a_plugins_options_stand_under_its_kind_in_both_forms_and_nowhere_else() -> None:
    schema = merged_schema({("attention", "toy"): Options, ("ops", "other"): Other})
    by_name, flat = at(schema, "attention", "options")["anyOf"]
    assert follow(schema, by_name["properties"]["toy"]) == follow(schema, flat)
    assert follow(schema, flat)["properties"]["size"]["type"] == "integer"
    assert "anyOf" not in at(schema, "transport", "options")
    assert at(schema, "ops", "options")["anyOf"][0]["properties"].keys() == {"other"}


def test_every_reference_has_a_target_and_nested_models_do_not_collide() -> None:
    schema = merged_schema({("attention", "toy"): Options, ("attention", "other"): Other, ("ops", "other"): Other})
    targets = {f"#/$defs/{name}" for name in schema["$defs"]}
    assert references(schema) <= targets
    assert {"attention.toy.Inner", "attention.other.Inner", "ops.other.Inner"} <= schema["$defs"].keys()
