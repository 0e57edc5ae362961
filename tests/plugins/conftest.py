"""A site folder that is importable during the test, and forgotten after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.toys import Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty site folder, first on `sys.path`."""
    site = Site(tmp_path / "site")
    site.path.mkdir()
    monkeypatch.syspath_prepend(str(site.path))
    yield site
    for name in [name for name in sys.modules if name.startswith("toy_")]:
        del sys.modules[name]
