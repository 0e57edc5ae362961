"""Children load exactly the plan they were given (rule 6): nothing is discovered, everything is verified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from srtkit.config.settings import load_settings
from srtkit.plugins.loaded import WiredPlugin, WiringPlan, load_wiring
from srtkit.plugins.registry import Offer, discover
from srtkit.plugins.wiring import wire
from srtkit.spec.errors import PluginBroken, PluginIncompatible, PluginNotFound
from tests.plugins.toys import Site


@pytest.fixture
def plan(site: Site) -> WiringPlan:
    """A plan of the full toy set with one plugin that needs another."""
    site.full_set()
    site.plugin("prefix_cache", "outer")
    sets = ["model.source=x", "prefix_cache.use=outer", "prefix_cache.options.inner=prefix_cache:radix"]
    return wire(load_settings(None, sets, {}), discover([str(site.path)]))[0]


def changed(plan: WiringPlan, **changes: Any) -> WiringPlan:
    """The plan with another transport: fields of the plugin, or of its offer."""
    plugins = []
    for plugin in plan.plugins:
        if plugin.offer.kind == "transport":
            ours = {name: value for name, value in changes.items() if name in ("contract", "options")}
            offer = replace(plugin.offer, **{name: changes[name] for name in changes.keys() - ours.keys()})
            plugin = replace(plugin, offer=offer, **ours)
        plugins.append(plugin)
    return WiringPlan(tuple(plugins), plan.degraded)


def test_a_plan_survives_json(plan: WiringPlan) -> None:
    again = msgspec.json.decode(msgspec.json.encode(plan), type=WiringPlan)
    assert again == plan
    assert again.digest == plan.digest


def test_a_spawned_child_loads_the_plan_without_discovering(site: Site, plan: WiringPlan) -> None:
    code = """
        import importlib.metadata, json, msgspec, sys
        from srtkit.plugins.loaded import load_wiring
        from srtkit.plugins.loaded import WiringPlan
        importlib.metadata.distributions = None  # discovery would fail
        plan = msgspec.json.decode(sys.argv[1], type=WiringPlan)
        loaded = load_wiring(plan)
        print(json.dumps([plan.digest, [p.wired.id for p in loaded.plugins], "srtkit.plugins.wiring" in sys.modules]))
    """
    assert site.answer(code, msgspec.json.encode(plan).decode()) == [
        plan.digest,
        [plugin.id for plugin in plan.plugins],
        False,
    ]


def test_loaded_plugins_are_found_by_kind_and_role(plan: WiringPlan) -> None:
    loaded = load_wiring(plan)
    assert loaded.one("prefix_cache").wired.part == "prefix_cache:outer"
    assert [plugin.wired.offer.name for plugin in loaded.all("model_loader")] == ["safetensors", "gguf"]
    assert loaded.all("ops") == ()
    assert loaded.one("prefix_cache").options.model_dump() == {"size": 1, "inner": "prefix_cache:radix"}


def test_a_kind_without_a_plugin_is_a_clear_error(plan: WiringPlan) -> None:
    with pytest.raises(PluginNotFound, match="no plugin is chosen"):
        load_wiring(plan).one("ops")


@pytest.mark.parametrize("version", ["1.1", "none"])
def test_another_version_of_a_distribution_is_refused(plan: WiringPlan, version: str) -> None:
    other = changed(plan, version=version)
    with pytest.raises(
        PluginIncompatible, match=f"the plan says toy-transport-zmq {version}, here it is toy-transport-zmq 1.0"
    ):
        load_wiring(other)


def test_a_distribution_that_is_not_installed_here_is_refused(plan: WiringPlan) -> None:
    with pytest.raises(PluginIncompatible, match=r"the plan says elsewhere 1\.0, here it is elsewhere none"):
        load_wiring(changed(plan, distribution="elsewhere"))


def test_another_contract_is_refused(plan: WiringPlan) -> None:
    with pytest.raises(PluginIncompatible, match=r"the plan says contract 1\.9, here it is contract 1\.0"):
        load_wiring(changed(plan, contract="1.9"))


def test_options_that_the_plugin_refuses_here_are_an_error(plan: WiringPlan) -> None:
    with pytest.raises(PluginBroken, match="refuses the plan's options"):
        load_wiring(changed(plan, options={"size": "many"}))


def test_options_that_the_plugin_reads_differently_here_are_an_error(plan: WiringPlan) -> None:
    with pytest.raises(
        PluginIncompatible, match=r"the plan says options \{'size': 2\}, here it is options \{'size': 2, 'inner'"
    ):
        load_wiring(changed(plan, options={"size": 2}))


def test_ids_are_unique_by_role_and_owner() -> None:
    plugin = WiredPlugin(Offer("attention", "torch", 1, "m", "d", "1"), "1.0", {})
    shadow = replace(plugin, role="shadow")
    inner = replace(plugin, role="inner", owner=shadow.id)
    assert [p.id for p in (plugin, shadow, inner)] == [
        "attention:torch",
        "attention:torch@shadow",
        "attention:torch@shadow/attention:torch@inner",
    ]
