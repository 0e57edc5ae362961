"""FlashAttention-3 on NVIDIA Hopper: the descriptor. Imports no torch; `build` finds the operator and the backend.

The kernels are those of an operator that vLLM or sglang-kernel brings; library.py says how it is found.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionCapabilities,
    AttentionDescriptor,
    AttentionSpec,
)
from srtkit.spec.capabilities import YES, No
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.kv import KVLayout, nhd_layout

PART = "attention:fa3"
DTYPES = frozenset({"bfloat16", "float16"})
PAGE_SIZES = (128, 64, 16, *(size for size in range(1, 257) if size not in (16, 64, 128)))
"""Any; with 128 long queries load whole pages by TMA."""
MAX_Q_LEN = 64
"""Longest uniform query of leading rows: verified drafts, at most."""
INSTEAD = 'name another backend, e.g. attention.use = "triton"'


class Options(BaseModel):
    """`[attention.options.fa3]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    library: str = Field(
        "", description="path of the shared library with the operator; empty: that of vllm or sgl_kernel if installed"
    )
    num_splits: int = Field(
        0, ge=0, le=256, description="parts that a row's keys are cut into, at most; 0: the operator decides"
    )
    schedule: bool = Field(
        True, description="let the operator plan its work once a step; false: once a layer, in a launch of its own"
    )


def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
    """What the operator does on Hopper. Raises `Unsupported` for any other device."""
    if facts.platform != "cuda" or not facts.architecture.startswith("sm90"):
        here = f"{facts.name} is {facts.platform} {facts.architecture}"
        raise Unsupported(PART, f"its kernels are for NVIDIA Hopper (sm90) only, and {here}", INSTEAD)
    return declared(DTYPES & facts.dtypes)


def declared(dtypes: frozenset[str]) -> AttentionCapabilities:
    """The capabilities on a device with these dtypes. Lengths are read on the device: steps may be recorded."""
    return AttentionCapabilities(
        dtypes=dtypes,
        kv_dtypes=DTYPES,
        head_dims=range(8, 257, 8),
        page_sizes=PAGE_SIZES,
        features=frozenset({"window", "soft_cap", "sinks", "non_causal"}),
        max_gqa_ratio=256,
        host_lengths="upper",
        capture="uniform",
        max_q_len_decode=MAX_Q_LEN,
        lse=YES,
        dense=No("attends over stored keys and this step's own only"),
        advance=YES,
        move_slots=YES,
        prefix_groups=No("reads a shared prefix once for each row"),
        batch_invariant=No("the operator chooses by the batch into how many parts a row's keys are cut"),
    )


def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
    """`nhd/1` in the dtype of the computation; none for MLA and for pairs of sizes without a kernel."""
    if page_size not in PAGE_SIZES or spec.mla is not None or spec.kv_dtype != spec.dtype:
        return ()
    if not has_kernel(spec.head_dim, spec.v_head_dim):
        return ()
    return (nhd_layout(page_size, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.kv_dtype),)


def has_kernel(head_dim: int, v_head_dim: int) -> bool:
    """Whether the operator takes values of this size with keys of that."""
    if head_dim == v_head_dim:
        return True
    narrow = head_dim <= 64 and v_head_dim <= 512
    return v_head_dim % 8 == 0 and (narrow or (128 < head_dim <= 192 and 96 < v_head_dim <= 128))


def build(build: AttentionBuild) -> AttentionBackend:
    """The backend of one layer group.

    Raises `Unsupported` for a spec it does not cover, `DeviceAbsent` without an operator, Triton or a Hopper GPU.
    """
    try:
        import triton  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise DeviceAbsent(
            PART, f"Triton cannot be imported: {error}", "pip install triton, or a torch that brings its own"
        ) from error
    from srtkit_plugin_attention_fa3.backend import Fa3Attention
    from srtkit_plugin_attention_fa3.library import find

    assert isinstance(build.options, Options)
    return Fa3Attention(build, build.options, find(build.options.library))


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers `attention:fa3`."""
    return AttentionDescriptor(
        contract="1.0", options=Options, capabilities=capabilities, kv_layouts=kv_layouts, build=build
    )
