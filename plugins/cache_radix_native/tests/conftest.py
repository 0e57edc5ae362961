"""Tests that need the library are skipped where there was no compiler to make it."""

from __future__ import annotations

import pytest

from srtkit_plugin_cache_radix_native import LIBRARY


@pytest.fixture
def library() -> None:
    """Skips where there was no compiler."""
    if not LIBRARY.exists():
        pytest.skip("there was no compiler")
