"""Loading one plugin: rules 2, 4, 8, 9 and 10, each with the plugin that breaks it."""

from __future__ import annotations

import logging

import pytest

from srtkit.plugins.loading import load
from srtkit.plugins.registry import Offer, discover
from srtkit.spec.attention import AttentionDescriptor
from srtkit.spec.errors import PluginBroken, PluginIncompatible
from srtkit.spec.versions import CONTRACTS
from tests.plugins.toys import DESCRIPTOR, Site, light_module


def offer(site: Site, kind: str = "attention", name: str = "toy") -> Offer:
    return discover([str(site.path)]).find(kind, name)


@pytest.mark.parametrize("kind", sorted(DESCRIPTOR))
def test_a_valid_light_module_of_each_kind_loads(site: Site, kind: str) -> None:
    site.plugin(kind, "toy")
    descriptor = load(offer(site, kind))
    assert type(descriptor).__name__ == DESCRIPTOR[kind]


def test_every_kind_but_cli_has_a_toy() -> None:
    assert DESCRIPTOR.keys() == CONTRACTS.keys() - {"cli"}


def test_an_entry_point_may_lead_to_an_object(site: Site) -> None:
    source = light_module("attention").replace("@hookimpl", "class Door:\n  @hookimpl")
    source = source.replace("def srtkit_attention():\n", "  def srtkit_attention(self):\n    ") + "door = Door()\n"
    site.add("door", {"srtkit.attention.v1": {"toy": "toy_door:door"}}, {"toy_door": source})
    assert isinstance(load(offer(site)), AttentionDescriptor)


def test_rule_2_a_light_module_that_imports_torch_is_refused(site: Site) -> None:
    site.plugin("attention", "toy", extra="import torch")
    site.add("fake-torch", {}, {"torch": "class Tensor: pass"})
    code = """
        import json, sys
        from srtkit.plugins.loading import load
        from srtkit.plugins.registry import discover
        from srtkit.spec.errors import PluginBroken
        try:
            load(discover([sys.argv[1]]).find("attention", "toy"))
        except PluginBroken as error:
            print(json.dumps(error.cause))
    """
    assert "its light module imports torch" in str(site.answer(code, str(site.path)))


def test_rule_4_an_import_error_names_all_that_is_known(site: Site) -> None:
    site.plugin("attention", "toy", "import no_such_vendor_library")
    with pytest.raises(PluginBroken) as broken:
        load(offer(site))
    error = broken.value
    assert error.part == "attention:toy"
    assert "ModuleNotFoundError: No module named 'no_such_vendor_library'" in error.cause
    assert "toy-attention-toy 1.0, entry point srtkit.attention.v1: toy = toy_attention_toy" in error.cause
    assert 'toy_attention_toy.py", line 1' in error.cause
    assert error.exit_code == 22


@pytest.mark.parametrize(
    "statement", ["assert False, 'no'", "raise SystemExit(3)", "import json; json.loads('{')", "1 +"]
)
def test_whatever_a_plugin_raises_at_import_is_a_broken_plugin(site: Site, statement: str) -> None:
    site.plugin("attention", "toy", statement)
    with pytest.raises(PluginBroken, match=r"raised (AssertionError|SystemExit|JSONDecodeError|SyntaxError)"):
        load(offer(site))


def test_ctrl_c_during_an_import_stays_ctrl_c(site: Site) -> None:
    site.plugin("attention", "toy", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load(offer(site))


def test_a_failed_load_logs_nothing(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """stevedore would log the error and go on."""
    site.plugin("attention", "toy", "1 / 0")
    with caplog.at_level(logging.WARNING), pytest.raises(PluginBroken):
        load(offer(site))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ("PARTS['contract'] = '1'", "not major.minor"),
        ("PARTS['contract'] = 'one.two'", "not major.minor"),
        ("PARTS['options'] = dict", "no pydantic model"),
        ("Descriptor = lambda **parts: parts", "returned dict, not AttentionDescriptor"),
        ("Descriptor = lambda **parts: None", "returned None"),
        ("Descriptor = lambda **parts: 1 / 0", "raised ZeroDivisionError"),
    ],
)
def test_a_hook_that_returns_nonsense_is_a_broken_plugin(site: Site, extra: str, problem: str) -> None:
    site.plugin("attention", "toy", extra=extra)
    with pytest.raises(PluginBroken, match=problem):
        load(offer(site))


def test_rule_8_a_newer_minor_without_requirements_is_fine(site: Site) -> None:
    site.plugin("attention", "toy", extra="PARTS['contract'] = '1.7'")
    assert load(offer(site)).contract == "1.7"


def test_rule_8_a_required_feature_that_core_lacks_is_refused_by_name(site: Site) -> None:
    site.plugin("attention", "toy", extra="PARTS |= dict(contract='1.7', requires=frozenset({'warp_drive'}))")
    with pytest.raises(PluginIncompatible, match=r"requires warp_drive of attention 1\.7, this core has 1\.\d"):
        load(offer(site))


def test_rule_8_a_descriptor_of_another_major_than_its_group_is_refused(site: Site) -> None:
    site.plugin("attention", "toy", extra="PARTS['contract'] = '2.0'")
    with pytest.raises(PluginIncompatible, match=r"speaks attention 2\.0, this core speaks 1\.\d"):
        load(offer(site))


PATCHES = {
    "a function": ("import srtkit.spec.kv as m; m.negotiate = lambda *a: None", "srtkit.spec.kv.negotiate"),
    "a class": ("import srtkit.spec.errors as m; m.OutOfMemory = KeyError", "srtkit.spec.errors.OutOfMemory"),
    "a method": (
        "from srtkit.spec.facts import Limits; Limits.max_pages = property(lambda self: 1)",
        "srtkit.spec.facts.Limits.max_pages",
    ),
    "a constructor": (
        "from srtkit.spec.facts import Limits; Limits.__init__ = lambda self: None",
        "srtkit.spec.facts.Limits.__init__",
    ),
    "an imported name": ("import srtkit.plugins.loading as m; m.load = print", "srtkit.plugins.loading.load"),
    "a removed module": ("import sys; del sys.modules['srtkit.spec.kv']", "srtkit.spec.kv."),
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES.keys())
def test_rule_9_replacing_something_of_core_names_the_plugin_and_the_object(site: Site, patch: tuple[str, str]) -> None:
    statement, replaced = patch
    site.plugin("attention", "toy", extra=statement)
    code = """
        import json, sys
        import srtkit.spec.kv
        from srtkit.plugins.loading import load
        from srtkit.plugins.registry import discover
        from srtkit.spec.errors import PluginBroken
        try:
            load(discover([sys.argv[1]]).find("attention", "toy"))
        except PluginBroken as error:
            print(json.dumps([error.part, error.cause]))
    """
    part, cause = site.answer(code, str(site.path))  # type: ignore[misc]
    assert part == "attention:toy"
    assert replaced in cause


def test_rule_9_new_submodules_and_attributes_are_fine(site: Site) -> None:
    site.plugin("attention", "toy", extra="import srtkit.spec.kv as m; m.new_cache = {}; m._later = lambda: None")
    code = """
        import sys
        from srtkit.plugins.loading import load
        from srtkit.plugins.registry import discover
        load(discover([sys.argv[1]]).find("attention", "toy"))
        print("true")
    """
    assert site.answer(code, str(site.path)) is True


def test_rule_9_torch_is_guarded_too(site: Site) -> None:
    site.plugin("attention", "toy", extra="import torch; torch.matmul = print")
    site.add("fake-torch", {}, {"torch": "class Tensor: pass\ndef matmul(): pass"})
    code = """
        import json, sys
        import torch
        from srtkit.plugins.loading import load
        from srtkit.plugins.registry import discover
        from srtkit.spec.errors import PluginBroken
        try:
            load(discover([sys.argv[1]]).find("attention", "toy"))
        except PluginBroken as error:
            print(json.dumps(error.cause))
    """
    assert str(site.answer(code, str(site.path))).startswith("replaced torch.matmul")


def test_rule_10_a_misspelt_hook_is_refused(site: Site) -> None:
    site.plugin("attention", "toy", extra="@hookimpl\ndef srtkit_atention(): pass")
    with pytest.raises(PluginBroken, match="srtkit_atention"):
        load(offer(site))


def test_rule_10_a_hook_without_its_mark_is_refused(site: Site) -> None:
    site.plugin("attention", "toy", extra="hookimpl = lambda function: function")
    with pytest.raises(PluginBroken, match="srtkit_attention is not implemented, or lacks @hookimpl"):
        load(offer(site))


def test_rule_10_the_hook_of_another_kind_is_not_enough(site: Site) -> None:
    site.plugin("transport", "toy")
    site.add("wrong", {"srtkit.attention.v1": {"toy": "toy_transport_toy"}}, {})
    with pytest.raises(PluginBroken, match="srtkit_attention is not implemented"):
        load(offer(site))


def test_rule_10_no_cache_file_is_written(site: Site) -> None:
    site.plugin("attention", "toy")
    code = """
        import json, os, sys
        from pathlib import Path
        from srtkit.plugins.loading import load
        from srtkit.plugins.registry import discover
        load(discover().find("attention", "toy"))
        folders = [Path(os.environ["XDG_CACHE_HOME"]), Path(os.environ["HOME"])]
        print(json.dumps([str(path) for folder in folders for path in folder.rglob("*")]))
    """
    home = site.path.parent / "home"
    home.mkdir()
    done = site.python(code, HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_trace_says_what_was_loaded(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.plugin("attention", "toy")
    with caplog.at_level(logging.DEBUG, "srtkit.plugins"):
        load(offer(site))
    begun, ended = caplog.messages
    assert begun.startswith("load attention:toy: toy-attention-toy 1.0")
    assert ended == "loaded attention:toy: contract 1.0"
