"""The kernels of every instruction set that this processor has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch  # before the library, so that both use one OpenMP

from srtkit_plugin_cpu_native import library


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """More than one, whatever else the tests run with: the kernels divide their work."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=range(len(library.SETS)), ids=library.SETS)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> library.Kernels:
    """What `library.load` gives during the test."""
    found = library.load(request.param)
    if found is None or found.name != library.SETS[request.param]:
        pytest.skip("there was no compiler, or this processor has not the set")
    monkeypatch.setattr(library, "load", lambda: found)
    return found
