"""`ops:cpu-native`: the descriptor. No torch; `build` imports the provider."""

from __future__ import annotations

from srtkit.spec.capabilities import YES, Answer, No, NoOptions
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.ops import OpFacts, OpsBuild, OpsDescriptor, OpsProvider
from srtkit_plugin_cpu_native import LIBRARY, NOT_BUILT

PART = "ops:cpu-native"
NAMES = frozenset({"linear", "rms_norm", "add_rms_norm", "silu_mul", "rope", "norm_rope"})
DTYPES = frozenset({"bfloat16", "float32"})
INPUTS = 32
"""Inputs of a linear come in multiples of this: the width of an AMX tile."""


def accepts(facts: OpFacts) -> Answer:
    """On the CPU in bfloat16 and float32; `linear` in bfloat16 where the processor has instructions for it."""
    if not LIBRARY.exists():
        return No(NOT_BUILT)
    if facts.device.platform != "cpu":
        return No(f"is for the CPU, not for {facts.device.platform}")
    if facts.dtype not in DTYPES:
        return No(f"has no {facts.dtype}")
    sets = facts.device.extra.get("isa", "").split()
    if facts.device.architecture == "x86_64" and "avx2" not in sets:
        return No("is for processors with AVX2")
    if facts.op != "linear":
        return YES
    if facts.dtype != "bfloat16":
        return No("has linears in bfloat16 only")
    if "avx512_bf16" not in sets:
        return No("has linears for processors with AVX512_BF16")
    if facts.sizes.get("in", 0) % INPUTS:
        return No(f"takes inputs in multiples of {INPUTS}")
    return YES


def build(given: OpsBuild) -> OpsProvider:
    """The provider; it is built even where `accepts` says no to everything, so that the next one may serve."""
    from srtkit_plugin_cpu_native.provider import NativeOps

    return NativeOps()


@hookimpl
def srtkit_ops() -> OpsDescriptor:
    """Offers the operators."""
    return OpsDescriptor(contract="1.0", options=NoOptions, names=NAMES, accepts=accepts, build=build)
