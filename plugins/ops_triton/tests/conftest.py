"""Where the kernels run in these tests: on the GPU that torch has, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is declared, so before the plugin's are imported


@pytest.fixture(scope="session")
def device() -> str:
    """Platform for the conformance kit."""
    pytest.importorskip("triton", reason="Triton is not installed")
    return DEVICE
