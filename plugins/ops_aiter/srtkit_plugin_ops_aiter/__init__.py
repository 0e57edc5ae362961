"""Operators of AMD's aiter on MI300X and MI355X: the descriptor. Imports neither torch nor aiter.

Which sizes and dtypes aiter's kernels take is answered here, before one of them can be called wrongly; library.py says
how aiter is found.
"""

from __future__ import annotations

from collections.abc import Mapping

from srtkit.spec.capabilities import YES, Answer, No, NoOptions
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.ops import OpFacts, OpsBuild, OpsDescriptor, OpsProvider

PART = "ops:aiter"
NAMES = frozenset({"rms_norm", "add_rms_norm", "silu_mul", "rope", "route", "experts"})
ARCHITECTURES = frozenset({"gfx942", "gfx950"})
DTYPES = frozenset({"bfloat16", "float16"})
SILU_MULTIPLE = 16
"""aiter's activation stores whole vectors, of up to 16 values: other widths would run into the next row."""
MOST_EXPERTS = 256
"""aiter's router has a kernel for each power of two up to here; the one for other numbers reads NaN as a number."""
TILE = 128
"""The largest tile, in both directions, among aiter's multiplications by experts: no rest is computed."""
LAST_OFFSET = 2**31
"""Where an expert begins is a number of 32 bits there, counted in elements of gate and up."""


def accepts(facts: OpFacts) -> Answer:
    """MI300X and MI355X in 16 bits; any size of norm and rotation, activations of whole vectors, experts of tiles."""
    if facts.op not in NAMES:
        return No(f"has no {facts.op}")
    device = facts.device
    if device.platform != "rocm" or device.architecture not in ARCHITECTURES:
        return No(f"is for AMD gfx942 and gfx950, not for {device.platform} {device.architecture}")
    if facts.dtype not in DTYPES:
        return No(f"has no {facts.dtype}")
    return _sizes(facts.op, facts.sizes)


def _sizes(op: str, sizes: Mapping[str, int]) -> Answer:
    if op == "silu_mul" and sizes["hidden"] % SILU_MULTIPLE:
        return No(f"stores activations in vectors of {SILU_MULTIPLE}, which {sizes['hidden']} is no multiple of")
    if op == "route" and (sizes["experts"] > MOST_EXPERTS or sizes["experts"].bit_count() != 1):
        return No(f"chooses among a power of two of experts up to {MOST_EXPERTS}, not among {sizes['experts']}")
    return _experts(sizes["experts"], sizes["hidden"], sizes["size"]) if op == "experts" else YES


def _experts(experts: int, hidden: int, size: int) -> Answer:
    if hidden % TILE or size % TILE:
        return No(f"multiplies by experts in tiles of {TILE}: {hidden} or {size} is no multiple")
    if experts * 2 * size * hidden >= LAST_OFFSET:
        return No(f"counts elements in 32 bits, and {experts} x {2 * size} x {hidden} are more")
    return YES


def build(given: OpsBuild) -> OpsProvider:
    """Raises `DeviceAbsent` without torch for ROCm or without aiter, `Unsupported` for a version that is too old."""
    from srtkit_plugin_ops_aiter.library import find
    from srtkit_plugin_ops_aiter.provider import AiterOps

    return AiterOps(find(), given.platform.device(given.device_index), given.limits.max_tokens)


@hookimpl
def srtkit_ops() -> OpsDescriptor:
    """Offers the operators."""
    return OpsDescriptor(contract="1.3", options=NoOptions, names=NAMES, accepts=accepts, build=build)
