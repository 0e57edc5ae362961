"""Finding aiter: the one place that imports it, and only where torch is for ROCm.

Anywhere else its import fails, and on ROCm it may start a compiler. `signatures.json` holds the arguments of what is
called here as the recorded versions define them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit_plugin_ops_aiter import PART

OLDEST = (0, 1, 7)
INSTALL = "pip install 'srtkit-plugin-ops-aiter[aiter]', or AMD's image, which brings aiter"
WITHOUT = "leave aiter out of [ops] use"
FUNCTIONS = {
    "rms_norm": "aiter.ops.rmsnorm",
    "rmsnorm2d_fwd_with_add": "aiter.ops.rmsnorm",
    "silu_and_mul": "aiter.ops.activation",
    "rope_cached_positions_2c_fwd_inplace": "aiter.ops.rope",
    "topk_softmax": "aiter.ops.moe_op",
    "shuffle_weight": "aiter.ops.shuffle",
    "fused_moe": "aiter.fused_moe",
}
"""What is called, and where aiter defines it."""


@dataclass(frozen=True)
class Library:
    """aiter's functions by the names of `FUNCTIONS`. They are compiled on the first call of each."""

    version: str
    rms_norm: Callable[..., Any]
    rmsnorm2d_fwd_with_add: Callable[..., Any]
    silu_and_mul: Callable[..., Any]
    rope_cached_positions_2c_fwd_inplace: Callable[..., Any]
    topk_softmax: Callable[..., Any]
    shuffle_weight: Callable[..., Any]
    fused_moe: Callable[..., Any]


def find() -> Library:
    """The installed aiter.

    Raises `DeviceAbsent` where torch is not for ROCm, aiter is not installed or cannot be imported, and `Unsupported`
    for a version before `OLDEST` or without one of the functions.
    """
    if torch.version.hip is None:
        raise DeviceAbsent(PART, f"torch {torch.__version__} is not built for ROCm", WITHOUT)
    try:
        found = version("amd-aiter")
    except PackageNotFoundError as error:
        raise DeviceAbsent(PART, "amd-aiter is not installed", INSTALL) from error
    if tuple(map(int, re.findall(r"\d+", found)[:3])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Unsupported(PART, f"amd-aiter {found} is too old; {oldest} is the oldest that is known", INSTALL)
    try:
        functions = {name: vars(import_module(module)).get(name) for name, module in FUNCTIONS.items()}
    except Exception as error:  # of whatever it loads: a ROCm file, a compiler, its own modules
        cause, remedy = f"amd-aiter {found} cannot be imported: {error}", "`srt doctor` looks at ROCm and hipcc"
        raise DeviceAbsent(PART, cause, remedy) from error
    if missing := sorted(name for name, function in functions.items() if function is None):
        raise Unsupported(PART, f"amd-aiter {found} has no {', '.join(missing)}", WITHOUT)
    return Library(found, **functions)  # type: ignore[arg-type]
