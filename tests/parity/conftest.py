"""The reference, and engines over the quick-start model in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from srtkit import Engine
from tests.parity import reference
from tests.parity.reference import Case

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.toml"
FLOAT32 = {"model.dtype": "float32", "memory.kv_gib": "0.5"}
ONE_THREAD = {"platform.options.threads": "1"}
"""Tests share the machine, and OpenMP's threads wait for each other by spinning: beside other work two are slower."""


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    """All twenty."""
    return reference.load()[1]


@pytest.fixture(scope="session")
def case(cases: list[Case]) -> Callable[[str], Case]:
    """One of them by its name."""
    return {one.name: one for one in cases}.__getitem__


@pytest.fixture(scope="session")
def quickstart() -> Path:
    """The configuration file that users start with."""
    return QUICKSTART


@pytest.fixture(scope="session")
def plain_engine() -> Iterator[Engine]:
    """An engine with the defaults of the quick start, but in float32."""
    with Engine.from_config(QUICKSTART, FLOAT32 | ONE_THREAD) as engine:
        yield engine
