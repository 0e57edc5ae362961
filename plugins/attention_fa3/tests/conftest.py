"""The operator's double, and the conformance kit on a Hopper GPU that is not here.

Small Triton kernels run in Triton's interpreter. On a machine with a GPU they cannot, so these tests are left out there
and the suite runs on the card instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from plugins.attention_fa3.tests import double
from plugins.attention_triton.tests.conftest import device as device  # it mends the interpreter
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.target import Target

HOPPER = DeviceFacts("cuda", "assumed H100", "sm90", dtypes=frozenset({"float32", "bfloat16", "float16"}))


@pytest.fixture(params=sorted(double.SCHEMAS))
def provider(request: pytest.FixtureRequest) -> str:
    """Whose operators there are, by namespace."""
    return str(request.param)


@pytest.fixture
def calls(device: str, provider: str) -> Iterator[list[dict[str, Any]]]:
    """The double is registered; what its attention was called with, by argument name, latest last."""
    if device != "cpu":
        pytest.skip("the double is for a CPU")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    log: list[dict[str, Any]] = []
    with double.registered(provider, log):
        yield log
    torch.set_num_threads(before)


@pytest.fixture
def target(calls: list[dict[str, Any]], tmp_path: Path) -> Target:
    """The plugin, told that its device is a Hopper GPU; tensors are on the CPU."""
    return replace(load_target(Subject("attention", "fa3"), suite_for("attention"), tmp_path), facts=HOPPER)


@pytest.fixture
def harness(target: Target) -> Harness:
    """The suite's."""
    return Harness(target)
