"""What all operators share: how kernels are launched, and rows with dense elements."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from srtkit.spec.facts import DeviceFacts

Launch = Mapping[str, bool]
"""How a kernel is launched: see `launch_of`."""
ALONE: Launch = {"EARLY": False}


def launch_of(device: DeviceFacts) -> Launch:
    """From sm90 on a kernel may be launched before the one before it has ended."""
    generation = device.architecture.removeprefix("sm") if device.platform == "cuda" else ""
    return {"EARLY": True, "launch_pdl": True} if generation.isdecimal() and int(generation) >= 90 else ALONE


def dense_rows(x: Tensor) -> Tensor:
    """x with elements of its last dimension beside each other."""
    return x if x.stride(-1) == 1 else x.contiguous()
