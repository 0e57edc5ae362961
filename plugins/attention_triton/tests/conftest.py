"""Where the kernels run in these tests: on the GPU that torch has, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is declared, so before the plugin's are imported


def _mend(interpreter: Any) -> None:
    """Bounds of a loop that were loaded are arrays of one element, which numpy from 2.4 on makes no number of."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


@pytest.fixture(scope="session")
def device() -> str:
    """Platform for the conformance kit."""
    pytest.importorskip("triton", reason="Triton is not installed")
    if DEVICE == "cpu":
        _mend(importlib.import_module("triton.runtime.interpreter"))
    return DEVICE
