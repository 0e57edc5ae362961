"""Operators in Triton: the descriptor. Imports neither torch nor Triton.

Norms, activation and rotation in one kernel each, and linears of one row; those of more stay with the libraries that
torch calls.
"""

from __future__ import annotations

from srtkit.spec.capabilities import YES, Answer, No, NoOptions
from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.ops import OpFacts, OpsBuild, OpsDescriptor, OpsProvider

PART = "ops:triton"
NAMES = frozenset(
    {"rms_norm", "add_rms_norm", "silu_mul", "rope", "norm_rope", "linear", "embed", "argmax", "sample", "penalize"}
)
DTYPES: dict[str, frozenset[str]] = {
    "cuda": frozenset({"float32", "bfloat16", "float16"}),
    "rocm": frozenset({"float32", "bfloat16", "float16"}),
    "cpu": frozenset({"float32", "float16"}),  # in Triton's interpreter, which is wrong in bfloat16
}
MAX_HIDDEN = 32768
"""A norm's row is one block: more would not fit into registers."""


def accepts(facts: OpFacts) -> Answer:
    """GPUs; any size of activation, rotation and linear, norms of up to `MAX_HIDDEN`."""
    if facts.op not in NAMES:
        return No(f"has no {facts.op}")
    dtypes = DTYPES.get(facts.device.platform)
    if dtypes is None:
        return No(f"has no kernels for {facts.device.platform}")
    if facts.dtype not in dtypes:
        return No(f"has no {facts.dtype} on {facts.device.platform}")
    hidden = facts.sizes.get("hidden", 1)
    if facts.op.endswith("rms_norm") and hidden > MAX_HIDDEN:
        return No(f"has norms of up to {MAX_HIDDEN} values, not of {hidden}")
    return YES


def build(given: OpsBuild) -> OpsProvider:
    """Raises `DeviceAbsent` without Triton, and on a CPU outside its interpreter."""
    try:
        import triton  # type: ignore[import-untyped]
    except ImportError as error:
        raise DeviceAbsent(
            PART, f"Triton cannot be imported: {error}", "pip install triton, or a torch that brings its own"
        ) from error
    from srtkit_plugin_ops_triton.provider import TritonOps

    on_cpu = given.platform.device(given.device_index).type == "cpu"
    if on_cpu and not triton.knobs.runtime.interpret:
        raise DeviceAbsent(
            PART, "runs on a GPU; on a CPU in Triton's interpreter only", "leave triton out of [ops] use"
        )
    return TritonOps()


@hookimpl
def srtkit_ops() -> OpsDescriptor:
    """Offers the operators."""
    return OpsDescriptor(contract="1.0", options=NoOptions, names=NAMES, accepts=accepts, build=build)
