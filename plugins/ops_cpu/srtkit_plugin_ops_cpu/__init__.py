"""Operators for the CPU: the descriptor. No torch.

Norms, activation and rotation need fewer kernels than the references; `linear` keeps its weight in
oneDNN's blocked form.
"""

from __future__ import annotations

from srtkit.spec.capabilities import YES, Answer, No, NoOptions
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.ops import OpFacts, OpsBuild, OpsDescriptor, OpsProvider

NAMES = frozenset({"linear", "rms_norm", "add_rms_norm", "silu_mul", "rope", "norm_rope"})
# float16 is left to the reference: oneDNN has it for few processors only.
DTYPES = frozenset({"bfloat16", "float32"})


X86 = frozenset({"x86_64", "AMD64"})


def accepts(facts: OpFacts) -> Answer:
    """Any size, on the CPU, in bfloat16 and float32; `linear` where oneDNN packs that type."""
    if facts.device.platform != "cpu":
        return No(f"is for the CPU, not for {facts.device.platform}")
    if facts.dtype not in DTYPES:
        return No(f"has no {facts.dtype}")
    if facts.op != "linear":
        return YES
    if facts.device.architecture not in X86:
        return No(f"packs weights for x86-64, not for {facts.device.architecture}")
    if facts.dtype == "bfloat16" and "avx512f" not in facts.device.extra.get("isa", "").split():
        return No("packs bfloat16 weights for AVX-512, which this processor does not have")
    return YES


def build(given: OpsBuild) -> OpsProvider:
    """Raises `DeviceAbsent` where torch was built without oneDNN."""
    from srtkit_plugin_ops_cpu.provider import CpuOps

    return CpuOps()


@hookimpl
def srtkit_ops() -> OpsDescriptor:
    """Offers the operators."""
    return OpsDescriptor(contract="1.0", options=NoOptions, names=NAMES, accepts=accepts, build=build)
