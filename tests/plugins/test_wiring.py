"""From settings to a plan: rules 3, 4, 6 and 7, choices, options tables, needs and fallbacks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from srtkit.config.settings import Settings, load_settings
from srtkit.plugins.loaded import WiredPlugin, WiringPlan
from srtkit.plugins.registry import discover
from srtkit.plugins.wiring import wire
from srtkit.spec.errors import ConfigError, DeviceAbsent, PluginBroken, PluginError, PluginNotFound
from tests.plugins.toys import Site


@pytest.fixture
def full(site: Site) -> Site:
    """A site with a plugin of every kind that a run needs."""
    site.full_set()
    return site


def settings(*sets: str) -> Settings:
    return load_settings(None, ["model.source=org/name", *sets], {})


def plan_of(site: Site, *sets: str, **wiring: Any) -> WiringPlan:
    return wire(settings(*sets), discover([str(site.path)]), **wiring)[0]


def of(plan: WiringPlan, kind: str) -> list[WiredPlugin]:
    return [plugin for plugin in plan.plugins if plugin.offer.kind == kind and not plugin.owner]


def ids(plan: WiringPlan) -> list[str]:
    return [plugin.id for plugin in plan.plugins]


# --- who is chosen


def test_without_names_platform_and_table_choose_and_the_platform_stands_first(full: Site) -> None:
    assert ids(plan_of(full)) == [
        "platform:cpu",
        "attention:torch",
        "prefix_cache:radix",
        "graph_runner:eager",
        "model_loader:safetensors",
        "model_loader:gguf",
        "transport:zmq",
        "models:models",
        "routes:admin",
    ]


def test_the_facts_and_defaults_of_the_platform_come_with_the_plan(full: Site) -> None:
    _, facts, defaults = wire(settings(), discover([str(full.path)]))
    assert facts.architecture == "toy1"
    assert defaults.plugins == {"attention": ("torch",)}


def test_the_file_comes_before_the_platform_and_the_platform_before_the_table(full: Site) -> None:
    full.plugin("attention", "mine")
    full.plugin(
        "platform", "other", extra="PARTS['defaults'] = lambda facts: PlatformDefaults({'prefix_cache': ('own',)})"
    )
    full.plugin("prefix_cache", "own")
    assert of(plan_of(full, "attention.use=mine"), "attention")[0].offer.name == "mine"
    assert of(plan_of(full, "platform.use=other"), "prefix_cache")[0].offer.name == "own"
    assert of(plan_of(full, "platform.use=other", "prefix_cache.use=radix"), "prefix_cache")[0].offer.name == "radix"


def test_a_gguf_source_chooses_its_loader(full: Site) -> None:
    plan = plan_of(full, "model.source=folder/file.gguf")
    assert [plugin.offer.name for plugin in of(plan, "model_loader")] == ["gguf"]


def test_the_order_of_a_list_is_kept_and_eager_is_always_last(full: Site) -> None:
    for name in ("cuda-full", "another"):
        full.plugin("graph_runner", name)
    chosen = of(plan_of(full, 'graph_runner.use=["cuda_full", "another"]'), "graph_runner")
    assert [plugin.offer.name for plugin in chosen] == ["cuda-full", "another", "eager"]
    chosen = of(plan_of(full, 'graph_runner.use=["eager"]'), "graph_runner")
    assert [plugin.offer.name for plugin in chosen] == ["eager"]


def test_an_empty_list_chooses_nothing(full: Site) -> None:
    full.plugin("platform", "other", extra="PARTS['defaults'] = lambda f: PlatformDefaults({'ops': ('fast',)})")
    full.plugin("ops", "fast")
    sets = ("platform.use=other", "attention.use=torch")
    assert [plugin.offer.name for plugin in of(plan_of(full, *sets), "ops")] == ["fast"]
    assert of(plan_of(full, *sets, "ops.use=[]"), "ops") == []


def test_attention_is_chosen_per_role(full: Site) -> None:
    full.plugin("attention", "mine")
    plan = plan_of(full, "attention.use=mine", "attention.decode=torch")
    assert [(p.offer.name, p.role) for p in of(plan, "attention")] == [("mine", "use"), ("torch", "decode")]
    assert {"attention:mine", "attention:torch@decode"} <= set(ids(plan))


def test_the_shadow_is_a_plugin_that_needs_the_one_that_the_file_names(full: Site) -> None:
    needs = 'PARTS["needs"] = lambda options: [Need("reference", "attention", options.against)]'
    options = "class Options(Options):\n    against: str\n    watch: str = 'x'\n    every: int = 1"
    full.plugin("attention", "shadow", extra=f"{options}\nPARTS['options'] = Options\n{needs}")
    plan = plan_of(full, "attention.use=torch", "attention.shadow=torch", "attention.options.shadow.every=3")
    shadow = of(plan, "attention")[-1]
    assert (shadow.part, shadow.role) == ("attention:shadow", "shadow")
    assert {"against": "torch", "watch": "", "every": 3}.items() <= shadow.options.items()
    assert "attention:shadow@shadow/attention:torch@reference" in ids(plan)


def test_a_distribution_disambiguates_in_the_file(full: Site) -> None:
    source = (full.path / "toy_attention_torch.py").read_text()
    full.add("rival", {"srtkit.attention.v1": {"torch": "toy_rival"}}, {"toy_rival": source})
    with pytest.raises(PluginError, match="offered more than once"):
        plan_of(full)
    assert of(plan_of(full, "attention.use=rival:torch"), "attention")[0].offer.distribution == "rival"


# --- rule 3


def test_rule_3_nothing_that_is_not_named_is_imported(full: Site) -> None:
    for kind in ("attention", "prefix_cache", "cli", "ops"):
        full.plugin(kind, "installed-only", "raise RuntimeError('imported')")
    code = """
        import json, sys
        from srtkit.config.settings import load_settings
        from srtkit.plugins.registry import discover
        from srtkit.plugins.wiring import wire
        wire(load_settings(None, ["model.source=x"], {}), discover([sys.argv[1]]))
        print(json.dumps(sorted(m for m in sys.modules if m.startswith("toy_"))))
    """
    assert full.answer(code, str(full.path)) == [
        "toy_attention_torch",
        "toy_graph_runner_eager",
        "toy_model_loader_gguf",
        "toy_model_loader_safetensors",
        "toy_models_models",
        "toy_platform_cpu",
        "toy_prefix_cache_radix",
        "toy_routes_admin",
        "toy_transport_zmq",
    ]


# --- rule 4


def test_rule_4_a_missing_plugin_stops_and_nothing_stands_in(full: Site) -> None:
    with pytest.raises(PluginNotFound, match="attention:nope"):
        plan_of(full, "attention.use=nope")


def test_rule_4_an_absent_device_has_its_own_error(full: Site) -> None:
    with pytest.raises(DeviceAbsent) as absent:
        plan_of(full, "platform.options.size=0")
    assert absent.value.exit_code == 25
    assert "toy-platform-cpu 1.0" in absent.value.cause


def test_facts_can_be_assumed_from_the_platforms_table(full: Site) -> None:
    assert of(plan_of(full, "platform.options.size=0", assume="toy1"), "platform")
    with pytest.raises(ConfigError, match='no table entry for "gfx942", only for toy1'):
        plan_of(full, assume="gfx942")


@pytest.mark.parametrize("part", ["probe", "defaults", "needs"])
def test_rule_4_a_plugin_that_raises_while_wiring_is_broken(full: Site, part: str) -> None:
    full.plugin("platform", "bad", extra=f"PARTS['{part}'] = lambda argument: 1 / 0")
    with pytest.raises(PluginBroken, match="platform:bad: raised ZeroDivisionError"):
        plan_of(full, "platform.use=bad")


def test_rule_4_a_fallback_is_taken_only_if_the_file_names_it_and_is_reported(full: Site) -> None:
    full.plugin("attention", "bad", "import no_such_library")
    with pytest.raises(PluginBroken):
        plan_of(full, "attention.use=bad")
    plan = plan_of(full, "attention.use=bad", 'attention.fallback=["torch"]')
    assert [plugin.offer.name for plugin in of(plan, "attention")] == ["torch"]
    (sentence,) = plan.degraded
    assert sentence.startswith("attention falls back to torch: attention:bad raised ModuleNotFoundError")
    assert plan_of(full).degraded == ()


def test_an_order_of_preference_of_the_platform_skips_what_is_not_installed(full: Site) -> None:
    order = "PARTS['defaults'] = lambda f: PlatformDefaults({'attention': ('first', 'torch'), 'ops': ('fast', 'slow')})"
    full.plugin("platform", "other", extra=order)
    full.plugin("ops", "slow")
    plan = plan_of(full, "platform.use=other")
    assert [plugin.offer.name for plugin in of(plan, "attention")] == ["torch"]
    assert [plugin.offer.name for plugin in of(plan, "ops")] == ["slow"]
    assert plan.degraded == ()
    full.plugin("attention", "first")
    assert of(plan_of(full, "platform.use=other"), "attention")[0].offer.name == "first"


def test_what_the_platform_prefers_and_cannot_run_here_is_replaced_by_its_next_and_reported(full: Site) -> None:
    order = "PARTS['defaults'] = lambda facts: PlatformDefaults({'attention': ('first', 'torch')})"
    full.plugin("platform", "other", extra=order)
    absent = """
        from srtkit.spec.errors import DeviceAbsent
        def Descriptor(**parts):
            raise DeviceAbsent("attention:first", "no kernels")
    """
    full.plugin("attention", "first", extra=absent)
    plan = plan_of(full, "platform.use=other")
    assert [plugin.offer.name for plugin in of(plan, "attention")] == ["torch"]
    assert plan.degraded == ("attention falls back to torch: attention:first no kernels",)
    with pytest.raises(DeviceAbsent, match="no kernels"):
        plan_of(full, "platform.use=other", "attention.use=first")


def test_rule_4_when_every_fallback_fails_the_first_error_stands(full: Site) -> None:
    full.plugin("attention", "bad", "import no_such_library")
    full.plugin("attention", "worse", "import not_that_either")
    with pytest.raises(PluginBroken, match="no_such_library"):
        plan_of(full, "attention.use=bad", "attention.fallback=worse")


def test_rule_4_a_fallback_that_is_not_installed_is_an_error_that_says_who_names_it(full: Site) -> None:
    for use in ("torch", "nope-either"):
        with pytest.raises(PluginNotFound, match="attention:nope: ") as refused:
            plan_of(full, f"attention.use={use}", "attention.fallback=nope")
        assert "(named by --set attention.fallback)" in refused.value.remedy


def test_a_name_of_another_kind_is_told(full: Site) -> None:
    with pytest.raises(PluginNotFound) as refused:
        plan_of(full, "attention.use=radix")
    assert refused.value.remedy.startswith("it is a name of prefix_cache; installed: torch")


def test_a_misspelt_table_of_options_gets_the_plugins_name(full: Site) -> None:
    full.plugin("attention", "mine")
    sets = ("attention.use=mine", "attention.fallback=torch", "attention.options.torhc.size=3")
    with pytest.raises(ConfigError) as refused:
        plan_of(full, *sets)
    assert refused.value.remedy == 'did you mean "torch"?'


def test_options_of_a_file_keep_their_types(full: Site, tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    for value in ('"1"', "true"):
        file.write_text(f'[model]\nsource = "org/name"\n[attention.options]\nsize = {value}\n')
        with pytest.raises(ConfigError, match="size: Input should be a valid integer") as wrong:
            wire(load_settings(file, environ={}), discover([str(full.path)]))
        assert wrong.value.part == f"{file}:4"


def test_a_wrong_option_is_never_a_reason_to_fall_back(full: Site) -> None:
    full.plugin("attention", "mine")
    with pytest.raises(ConfigError):
        plan_of(full, "attention.use=mine", "attention.fallback=torch", "attention.options.sise=1")


# --- rule 6


def test_rule_6_equal_settings_give_equal_plans_and_any_difference_another_digest(full: Site) -> None:
    first, second = plan_of(full), plan_of(full)
    assert first == second
    assert first.digest == second.digest
    other = plan_of(full, "attention.options.size=2")
    assert other.digest != first.digest


# --- rule 7


@pytest.mark.parametrize("table", ["attention.options", "attention.options.torch"])
def test_rule_7_one_plugin_may_use_the_kinds_table_or_its_own(full: Site, table: str) -> None:
    (attention,) = of(plan_of(full, f"{table}.size=5"), "attention")
    assert attention.options == {"size": 5, "inner": ""}


def test_rule_7_several_plugins_have_a_table_each(full: Site) -> None:
    full.plugin("graph_runner", "cuda-full")
    sets = ("graph_runner.use=cuda-full", "graph_runner.options.cuda_full.size=5", "graph_runner.options.eager.size=6")
    sizes = {plugin.offer.name: plugin.options["size"] for plugin in of(plan_of(full, *sets), "graph_runner")}
    assert sizes == {"cuda-full": 5, "eager": 6}


def test_rule_7_a_shared_table_of_several_plugins_is_ambiguous(full: Site) -> None:
    full.plugin("graph_runner", "cuda-full")
    with pytest.raises(ConfigError, match=r'"size" in \[graph_runner.options\] may belong to any of: cuda-full, eager'):
        plan_of(full, "graph_runner.use=cuda-full", "graph_runner.options.size=5")


def test_rule_7_options_of_a_kind_without_a_plugin_are_an_error(full: Site) -> None:
    with pytest.raises(ConfigError, match="no plugin"):
        plan_of(full, "recurrent.options.size=5")


def test_rule_7_tables_of_plugins_that_are_not_chosen_do_not_disturb(full: Site) -> None:
    full.plugin("attention", "mine")
    sets = ("attention.options.mine.size=3", "attention.options.torch.size=4")
    assert of(plan_of(full, *sets, "attention.use=mine"), "attention")[0].options["size"] == 3
    assert of(plan_of(full, *sets, "attention.use=torch"), "attention")[0].options["size"] == 4


def test_rule_7_a_wrong_option_is_an_error_with_the_files_line(full: Site, tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[model]\nsource = "org/name"\n\n[attention.options.torch]\nsize = 1\nsise = 2\n')
    with pytest.raises(ConfigError) as wrong:
        wire(load_settings(file, environ={}), discover([str(full.path)]))
    assert wrong.value.part == f"{file}:6"
    assert wrong.value.cause == 'unknown key "sise" in [attention.options.torch]'
    assert wrong.value.remedy == 'did you mean "size"?'


def test_rule_7_a_wrong_type_is_an_error_with_the_flag_that_caused_it(full: Site) -> None:
    with pytest.raises(ConfigError, match=r"--set attention\.options\.size: Input should be a valid integer"):
        plan_of(full, "attention.options.size=many")


# --- needs


def test_a_needed_plugin_stands_before_its_owner_with_its_own_options(full: Site) -> None:
    full.plugin("prefix_cache", "outer")
    plan = plan_of(full, "prefix_cache.use=outer", "prefix_cache.options.inner=prefix_cache:radix")
    inner, outer = (plugin for plugin in plan.plugins if plugin.offer.kind == "prefix_cache")
    assert (inner.part, inner.role, inner.owner) == ("prefix_cache:radix", "inner", "prefix_cache:outer")
    assert inner.options["size"] == 7
    assert of(plan, "prefix_cache") == [outer]


def test_needs_are_followed_to_the_end_and_a_circle_is_refused(full: Site) -> None:
    need = "PARTS['needs'] = lambda options: [Need('inner', 'prefix_cache', '{}')]"
    full.plugin("prefix_cache", "a", extra=need.format("b"))
    full.plugin("prefix_cache", "b", extra=need.format("radix"))
    chain = ids(plan_of(full, "prefix_cache.use=a"))
    assert "prefix_cache:a/prefix_cache:b@inner/prefix_cache:radix@inner" in chain
    full.plugin("prefix_cache", "c", extra=need.format("d"))
    full.plugin("prefix_cache", "d", extra=need.format("c"))
    with pytest.raises(ConfigError, match="needs itself: prefix_cache:c/prefix_cache:d@inner -> prefix_cache:c"):
        plan_of(full, "prefix_cache.use=c")


def test_a_missing_need_names_what_is_missing(full: Site) -> None:
    with pytest.raises(PluginNotFound, match="transport:nope"):
        plan_of(full, "prefix_cache.options.inner=transport:nope")


# --- the trace


def test_the_trace_tells_who_chose_each_kind(full: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "srtkit.plugins"):
        plan_of(full, "transport.use=zmq")
    assert caplog.messages[0].startswith("load platform:cpu: toy-platform-cpu 1.0, entry point")
    for decision in (
        "probe platform:cpu: 1 x Toy 1 (toy1)",
        "choose transport: zmq (by file)",
        "choose attention: torch (by platform)",
        "choose prefix_cache: radix (by default)",
        "choose ops: none (by default)",
    ):
        assert decision in caplog.messages
