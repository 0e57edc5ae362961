"""The plugin's door: its options are those of `radix`, it loads little, and without a library it says what to do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

import srtkit_plugin_cache_radix as radix
import srtkit_plugin_cache_radix_native as plugin
from srtkit.spec.errors import DeviceAbsent


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValidationError):
        plugin.RadixOptions.model_validate({"evict": "lru"})


@pytest.mark.parametrize("events", [True, False])
def test_options_and_capabilities_are_those_of_radix_without_windows(events: bool) -> None:
    assert plugin.RadixOptions.model_json_schema() == radix.RadixOptions.model_json_schema()
    mine = plugin.capabilities(plugin.RadixOptions(events=events))
    theirs = radix.capabilities(radix.RadixOptions(events=events))
    assert mine == replace(theirs, reaches=theirs.reaches - {"window"})


def test_without_a_library_it_says_what_serves_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "LIBRARY", tmp_path / "_radix.abi3.so")
    with pytest.raises(DeviceAbsent) as absent:
        plugin.srtkit_prefix_cache()
    assert absent.value.part == "prefix_cache:radix-native"
    assert "not compiled" in absent.value.cause
    assert "install srtkit-plugin-cache-radix" in absent.value.remedy
    assert '[prefix_cache] use = "radix"' in absent.value.remedy


@pytest.mark.usefixtures("library")
def test_it_needs_neither_torch_nor_the_cache_in_python() -> None:
    code = (
        "import sys, srtkit_plugin_cache_radix_native as p; p.srtkit_prefix_cache()\n"
        "assert 'srtkit_plugin_cache_radix_native.library' not in sys.modules\n"
        "from srtkit.spec.prefix_cache import PrefixCacheBuild; from srtkit.spec.kv import FULL\n"
        "p.build(PrefixCacheBuild(16, (FULL,), p.RadixOptions()))\n"
        "assert not {'torch', 'srtkit_plugin_cache_radix'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
