"""The plugin's door, and the suite behind it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

import srtkit_plugin_cache_radix as plugin
from srtkit_conformance.inside import shortcomings


def test_it_keeps_the_contract() -> None:
    assert shortcomings("prefix_cache:radix", level=2) == []


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
