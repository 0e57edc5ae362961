"""A platform of two devices, closed afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import srtkit_plugin_platform_fakedev as plugin
from srtkit.spec.platform import PlatformBuild
from srtkit_plugin_platform_fakedev.platform import FakePlatform


@pytest.fixture
def platform() -> Iterator[FakePlatform]:
    options = plugin.Options(memory_mib=4)
    built = plugin.build(PlatformBuild(plugin.probe(options)[0], options))
    assert isinstance(built, FakePlatform)
    yield built
    built.close()
