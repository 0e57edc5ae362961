"""The plugin's door: light, complete, and found by its entry point."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pluggy
import pytest
from pydantic import ValidationError

import srtkit_plugin_cache_radix as plugin
from srtkit.spec import hookspecs
from srtkit.spec.versions import CONTRACTS


def test_the_hook_is_registered_and_gives_the_descriptor() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()
    (descriptor,) = manager.hook.srtkit_prefix_cache()
    assert descriptor.contract == CONTRACTS["prefix_cache"].version
    assert descriptor.capabilities(descriptor.options()).shares


def test_found_by_name() -> None:
    (point,) = entry_points(group=CONTRACTS["prefix_cache"].group, name="radix")
    assert point.load() is plugin


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValidationError):
        plugin.RadixOptions.model_validate({"evict": "lru"})


def test_the_descriptor_loads_neither_torch_nor_the_tree() -> None:
    code = (
        "import sys, srtkit_plugin_cache_radix as p; p.srtkit_prefix_cache()\n"
        "assert not {'torch', 'srtkit_plugin_cache_radix.tree'} & set(sys.modules)\n"
        "from srtkit.spec.prefix_cache import PrefixCacheBuild; from srtkit.spec.kv import FULL\n"
        "p.build(PrefixCacheBuild(16, (FULL,), p.RadixOptions()))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
