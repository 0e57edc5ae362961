"""A library that is there and cannot be used is told with part, cause and remedy."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from srtkit.spec.errors import DeviceAbsent
from srtkit_plugin_cache_radix_native import library
from srtkit_plugin_cache_radix_native.library import load


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is remembered of one test in another."""
    library.load.cache_clear()
    yield
    library.load.cache_clear()


def test_a_file_that_is_no_library(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "_radix.abi3.so"
    path.write_bytes(b"left by a build that broke")
    monkeypatch.setattr(library, "LIBRARY", path)
    with pytest.raises(
        DeviceAbsent, match=r"prefix_cache:radix-native: its library cannot be used(.|\n)*use = \"radix\""
    ):
        library.load()


def test_a_library_of_something_else(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that loads, and is another module."""
    monkeypatch.setattr(library, "LIBRARY", find_spec("numpy.random.mtrand").origin)  # type: ignore[union-attr]
    with pytest.raises(DeviceAbsent, match="PyInit__radix"):
        library.load()


def test_a_call_that_it_was_not_made_for_is_refused(library: None) -> None:
    """As by a library of older sources: nothing is read beyond the arguments."""
    cache = load().Cache(4, 1, 0, False, 2**64 - 1)
    for call in (cache.match, cache.peek, cache.insert, cache.outline):
        with pytest.raises(TypeError, match="compile the library again"):
            call()
    assert cache.figures() == (0, 0, 0)
