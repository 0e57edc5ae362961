"""Attention in Triton: the descriptor. Imports neither torch nor Triton; `build` imports the backend.

Kernels are compiled for the device when they are first called, on NVIDIA and AMD alike. On a CPU they run in
Triton's interpreter only, which is slow and wrong in bfloat16: for tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionCapabilities,
    AttentionDescriptor,
    AttentionSpec,
)
from srtkit.spec.capabilities import YES, No, NoOptions
from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.kv import KVLayout, nhd_layout

PART = "attention:triton"
DTYPES: dict[str, frozenset[str]] = {
    "cuda": frozenset({"float32", "bfloat16", "float16"}),
    "rocm": frozenset({"float32", "bfloat16", "float16"}),
    "cpu": frozenset({"float32", "float16"}),
}
HEAD_DIMS = range(8, 257, 8)
PAGE_SIZES = (64, 16, *(size for size in range(1, 257) if size not in (16, 64)))
MAX_GQA_RATIO = 64
MAX_Q_LEN = 64
"""Longest uniform query of leading rows: verified drafts, at most."""


def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
    """Everything is read from device memory, so steps may be recorded, and lengths need not be known on the host."""
    every = frozenset().union(*DTYPES.values())
    return AttentionCapabilities(
        dtypes=DTYPES.get(facts.platform, frozenset()) & facts.dtypes,
        kv_dtypes=every,
        head_dims=HEAD_DIMS,
        page_sizes=PAGE_SIZES,
        features=frozenset({"window", "soft_cap", "sinks", "non_causal"}),
        max_gqa_ratio=MAX_GQA_RATIO,
        host_lengths="none",
        capture="uniform",
        max_q_len_decode=MAX_Q_LEN,
        lse=YES,
        dense=No("has no kernel for dense keys"),
        advance=YES,
        move_slots=YES,
        prefix_groups=YES,
        batch_invariant=No("the number of rows decides into how many parts a row's keys are cut"),
    )


def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
    """`nhd/1` in the dtype of the computation; none for MLA."""
    if page_size not in PAGE_SIZES or spec.mla is not None or spec.kv_dtype != spec.dtype:
        return ()
    return (nhd_layout(page_size, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.kv_dtype),)


def build(build: AttentionBuild) -> AttentionBackend:
    """The backend of one layer group. Raises `Unsupported` for a spec it does not cover, `DeviceAbsent` sans Triton."""
    try:
        import triton  # type: ignore[import-untyped]
    except ImportError as error:
        raise DeviceAbsent(
            PART, f"Triton cannot be imported: {error}", "pip install triton, or a torch that brings its own"
        ) from error
    from srtkit_plugin_attention_triton.backend import TritonAttention

    return TritonAttention(build, interpreted=triton.knobs.runtime.interpret)


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers `attention:triton`."""
    return AttentionDescriptor(
        contract="1.0", options=NoOptions, capabilities=capabilities, kv_layouts=kv_layouts, build=build
    )
