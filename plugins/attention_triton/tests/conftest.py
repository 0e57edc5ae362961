"""Where the kernels run in these tests: on the GPU that torch has, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import pytest
import torch

FP8 = {"fp8e4nv": torch.float8_e4m3fn, "fp8e4b8": torch.float8_e4m3fnuz}
"""By Triton's names."""
ROUNDED = {**{name: (dtype, torch.uint8) for name, dtype in FP8.items()}, "bf16": (torch.bfloat16, torch.uint16)}
"""Torch's dtype, and that of its bits."""
FLOATS = {"fp32": "float32", "fp16": "float16"}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is declared, so before the plugin's are imported


def _mend(interpreter: Any) -> None:
    """Faults of the interpreter.

    Bounds of a loop that were loaded are arrays of one element, which numpy from 2.4 on makes no number of. Rounding to
    fp8 loses the carry, and knows no NaN, and bfloat16 is cut off: torch does it right. In 3.9 a mask may be of int32,
    which no store takes.
    """
    patch, convert = interpreter._patch_lang_tensor, interpreter._convert_float
    store = interpreter.InterpreterBuilder.create_masked_store

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def converted(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if target.name not in ROUNDED or source.name not in FLOATS:
            return convert(values, source, target, rounding)
        dense = torch.from_numpy(np.ascontiguousarray(values)).view(getattr(torch, FLOATS[source.name]))
        rounded, bits = ROUNDED[target.name]
        return dense.to(rounded).view(bits).numpy()

    def stored(builder: Any, pointers: Any, values: Any, mask: Any, *rest: Any) -> Any:
        mask.data = np.asarray(mask.data, bool)
        return store(builder, pointers, values, mask, *rest)

    interpreter._patch_lang_tensor = patched
    interpreter._convert_float = converted
    interpreter.InterpreterBuilder.create_masked_store = stored


@pytest.fixture(scope="session")
def device() -> str:
    """Platform for the conformance kit."""
    pytest.importorskip("triton", reason="Triton is not installed")
    if DEVICE == "cpu":
        _mend(importlib.import_module("triton.runtime.interpreter"))
    return DEVICE
