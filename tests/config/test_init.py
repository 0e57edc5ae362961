"""A file for this machine: detection, refusals beside a visible accelerator, and a text that loads."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from srtkit.config.init import detect_platform, initial_config, option_lines
from srtkit.config.settings import Settings, load_settings
from srtkit.plugins.registry import Registry, discover
from srtkit.plugins.wiring import wire
from srtkit.spec.errors import DeviceAbsent, PluginBroken, PluginNotFound
from tests.plugins.toys import Site

HERE = "PARTS['priority'] = {priority}"
ABSENT = "PARTS |= dict(priority={priority}, probe=lambda options: [])"


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A folder that plays /dev, without an accelerator."""
    folder = tmp_path / "dev"
    folder.mkdir()
    (folder / "null").touch()
    (folder / "nvidia-caps").touch()
    return folder


def found(site: Site) -> Registry:
    return discover([str(site.path)])


def test_the_present_platform_of_highest_priority_is_detected(site: Site, dev: Path) -> None:
    site.plugin("platform", "cpu")
    site.plugin("platform", "mid", extra=HERE.format(priority=5))
    site.plugin("platform", "top", extra=ABSENT.format(priority=9))
    assert detect_platform(found(site), dev) == "mid"


def test_the_cpu_is_taken_where_nothing_else_is_visible(site: Site, dev: Path) -> None:
    site.plugin("platform", "cpu")
    site.plugin("platform", "cuda", extra=ABSENT.format(priority=9))
    assert detect_platform(found(site), dev) == "cpu"


@pytest.mark.parametrize("device", ["nvidia0", "nvidia7", "kfd"])
def test_the_cpu_never_stands_in_for_a_visible_accelerator(site: Site, dev: Path, device: str) -> None:
    site.plugin("platform", "cpu")
    site.plugin("platform", "cuda", extra=ABSENT.format(priority=9))
    (dev / device).touch()
    with pytest.raises(DeviceAbsent) as refused:
        detect_platform(found(site), dev)
    assert f"{dev / device} is here" in refused.value.cause
    assert "platform.use=cpu" in refused.value.remedy


def test_a_platform_that_finds_the_accelerator_is_taken(site: Site, dev: Path) -> None:
    site.plugin("platform", "cpu")
    site.plugin("platform", "cuda", extra=HERE.format(priority=9))
    (dev / "nvidia0").touch()
    assert detect_platform(found(site), dev) == "cuda"


def test_a_broken_platform_is_not_passed_over(site: Site, dev: Path) -> None:
    site.plugin("platform", "cpu")
    site.plugin("platform", "bad", "import no_such_library")
    with pytest.raises(PluginBroken):
        detect_platform(found(site), dev)


def test_without_any_platform_the_set_is_named(site: Site, dev: Path) -> None:
    with pytest.raises(PluginNotFound) as refused:
        detect_platform(found(site), dev)
    assert "srtkit-core[cpu]" in refused.value.remedy


def test_a_named_platform_is_not_questioned(site: Site, dev: Path) -> None:
    site.full_set()
    (dev / "nvidia0").touch()
    assert 'use = "cpu"' in initial_config("org/name", found(site), "cpu", dev)


def test_the_text_loads_wires_and_names_every_plugin(site: Site, dev: Path, tmp_path: Path) -> None:
    site.full_set()
    text = initial_config("org/name", found(site), dev=dev)
    table = tomllib.loads(text)
    assert table["model"] == {"source": "org/name"}
    assert table["model_loader"] == {"use": ["safetensors", "gguf"]}
    assert table["attention"] == {"use": "torch"}
    file = tmp_path / "written.toml"
    file.write_text(text)
    written, default = load_settings(file, environ={}), load_settings(None, ["model.source=org/name"], {})
    assert wire(written, found(site)) == wire(default, found(site))


def test_of_alternatives_the_first_is_named_and_the_others_are_its_fallbacks(site: Site, dev: Path) -> None:
    site.full_set()
    order = "PARTS['defaults'] = lambda facts: PlatformDefaults({'attention': ('first', 'torch')})"
    site.plugin("platform", "other", extra=order)
    site.plugin("attention", "first")
    text = initial_config("org/name", found(site), "other", dev)
    assert tomllib.loads(text)["attention"] == {"use": "first", "fallback": ["torch"]}
    written = load_settings(None, environ={}, base=tomllib.loads(text))
    chosen = [plugin.part for plugin in wire(written, found(site))[0].plugins if plugin.offer.kind == "attention"]
    assert chosen == ["attention:first", "attention:torch"]


def test_the_text_shows_every_option_with_its_description(site: Site, dev: Path) -> None:
    site.full_set()
    text = initial_config("org/name", found(site), dev=dev)
    assert "1 x Toy 1 (toy1)" in text.splitlines()[0]
    for name, field in Settings.model_fields.items():
        assert f"\n[{name}]\n" in text
        assert isinstance(field.annotation, type)
        for line in option_lines(field.annotation):
            key = line.removeprefix("# ").split(" = ")[0]
            assert key == "options" or f"{key} = " in text, key
    assert "# [attention.options.torch]\n# size = 1" in text


def test_uncommented_lines_are_toml() -> None:
    for field in Settings.model_fields.values():
        assert isinstance(field.annotation, type)
        lines = [line.removeprefix("# ") for line in option_lines(field.annotation)]
        settable = [line for line in lines if "= …" not in line]
        tomllib.loads("\n".join(settable))
