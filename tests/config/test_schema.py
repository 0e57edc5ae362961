"""The merged schema: every table of the file, with the options of the given plugins in either form."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from srtkit.config.init import merged_schema
from srtkit.config.settings import Settings


class Options(BaseModel):
    """A plugin's options."""

    class Inner(BaseModel):
        """A nested table."""

        depth: int = 1

    model_config = ConfigDict(extra="forbid")
    size: int = 1
    inner: Inner = Inner()


class Other(BaseModel):
    """Another plugin's options, with a nested model of the same name."""

    class Inner(BaseModel):
        """Another nested table."""

        width: int = 1

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


def tables(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    """Plugin name → table, of the form that has a table a plugin; the other form must have the same ones."""
    by_name, *flat = [follow(schema, form) for form in at(schema, kind, "options")["anyOf"]]
    found = {name: follow(schema, node) for name, node in by_name["properties"].items()}
    assert list(found.values()) == flat
    return found


def test_a_plugins_options_stand_under_its_kind_in_both_forms_and_nowhere_else() -> None:
    schema = merged_schema({"attention": {"toy": Options}, "ops": {"other": Other}})
    assert tables(schema, "attention")["toy"]["properties"]["size"]["type"] == "integer"
    assert tables(schema, "ops").keys() == {"other"}
    assert "anyOf" not in at(schema, "transport", "options")


def test_every_reference_has_a_target_and_nested_models_do_not_collide() -> None:
    schema = merged_schema({"attention": {"toy": Options, "other": Other}})
    assert references(schema) <= {f"#/$defs/{name}" for name in schema["$defs"]}
    inner = {name: follow(schema, table["properties"]["inner"]) for name, table in tables(schema, "attention").items()}
    assert [set(table["properties"]) for table in inner.values()] == [{"depth"}, {"width"}]
