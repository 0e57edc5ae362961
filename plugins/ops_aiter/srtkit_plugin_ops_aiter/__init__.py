"""Operators of AMD's aiter on MI300X and MI355X: the descriptor. Imports neither torch nor aiter.

Which sizes and dtypes aiter's kernels take is answered here, before one of them can be called wrongly; library.py says
how aiter is found.
"""

from __future__ import annotations

from srtkit.spec.capabilities import YES, Answer, No, NoOptions
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.ops import OpFacts, OpsBuild, OpsDescriptor, OpsProvider

PART = "ops:aiter"
NAMES = frozenset({"rms_norm", "add_rms_norm", "silu_mul", "rope"})
ARCHITECTURES = frozenset({"gfx942", "gfx950"})
DTYPES = frozenset({"bfloat16", "float16"})
SILU_MULTIPLE = 16
"""aiter's activation stores whole vectors, of up to 16 values: other widths would run into the next row."""


def accepts(facts: OpFacts) -> Answer:
    """MI300X and MI355X in 16 bits; any size of norm and rotation, activations of whole vectors."""
    if facts.op not in NAMES:
        return No(f"has no {facts.op}")
    device = facts.device
    if device.platform != "rocm" or device.architecture not in ARCHITECTURES:
        return No(f"is for AMD gfx942 and gfx950, not for {device.platform} {device.architecture}")
    if facts.dtype not in DTYPES:
        return No(f"has no {facts.dtype}")
    if facts.op == "silu_mul" and facts.sizes["hidden"] % SILU_MULTIPLE:
        return No(f"stores activations in vectors of {SILU_MULTIPLE}, which {facts.sizes['hidden']} is no multiple of")
    return YES


def build(given: OpsBuild) -> OpsProvider:
    """Raises `DeviceAbsent` without torch for ROCm or without aiter, `Unsupported` for a version that is too old."""
    from srtkit_plugin_ops_aiter.library import find
    from srtkit_plugin_ops_aiter.provider import AiterOps

    return AiterOps(find(), given.platform.device(given.device_index), given.limits.max_tokens)


@hookimpl
def srtkit_ops() -> OpsDescriptor:
    """Offers the operators."""
    return OpsDescriptor(contract="1.0", options=NoOptions, names=NAMES, accepts=accepts, build=build)
