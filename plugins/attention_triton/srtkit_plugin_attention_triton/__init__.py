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
from srtkit.spec.kv import KVLayout, Plane, nhd_layout

PART = "attention:triton"
DTYPES: dict[str, frozenset[str]] = {
    "cuda": frozenset({"float32", "bfloat16", "float16"}),
    "rocm": frozenset({"float32", "bfloat16", "float16"}),
    "cpu": frozenset({"float32", "float16"}),
}
FP8 = frozenset({"float8_e4m3fn", "float8_e4m3fnuz"})
HEAD_DIMS = range(8, 257, 8)
LATENT_DIMS = frozenset({288, 320, 576})
"""Of latent layers only: rank and rope part together."""
MAX_RANK = 512
PAGE_SIZES = (64, 16, *(size for size in range(1, 257) if size not in (16, 64)))
MAX_GQA_RATIO = 128
MAX_Q_LEN = 64
"""Longest uniform query of leading rows: verified drafts, at most."""


def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
    """Everything is read from device memory, so steps may be recorded, and lengths need not be known on the host."""
    flavour = "e4m3fn" if facts.platform == "cpu" else facts.fp8  # the interpreter has it
    fp8 = FP8 & {f"float8_{flavour}"}
    return declared(DTYPES.get(facts.platform, frozenset()) & facts.dtypes, fp8)


def declared(dtypes: frozenset[str], fp8: frozenset[str]) -> AttentionCapabilities:
    """The capabilities on a device that computes in `dtypes` and reads `fp8`."""
    every = frozenset().union(*DTYPES.values())
    features = {"window", "soft_cap", "sinks", "non_causal", "tree_mask", "mla", *(["fp8_kv"] if fp8 else [])}
    return AttentionCapabilities(
        dtypes=dtypes,
        kv_dtypes=every | fp8,
        head_dims=frozenset(HEAD_DIMS) | LATENT_DIMS,
        page_sizes=PAGE_SIZES,
        features=frozenset(features),
        max_gqa_ratio=MAX_GQA_RATIO,
        host_lengths="none",
        capture="any",
        max_q_len_decode=MAX_Q_LEN,
        lse=YES,
        dense=No("has no kernel for dense keys"),
        advance=YES,
        move_slots=YES,
        prefix_groups=YES,
        store_rotated=YES,
        batch_invariant=No("the number of rows decides into how many parts a row's keys are cut"),
    )


def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
    """`nhd/1`, or `latent/1` for MLA, in the dtype of the computation or the device's fp8."""
    fp8 = capabilities(facts).kv_dtypes & FP8
    if page_size not in PAGE_SIZES or spec.kv_dtype not in fp8 | {spec.dtype}:
        return ()
    nhd = nhd_layout(page_size, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.kv_dtype)
    if spec.mla is None:
        return (nhd,) if spec.head_dim in HEAD_DIMS else ()
    planes = (
        Plane("latent", (page_size, spec.mla.rank), spec.kv_dtype),
        Plane("rope", (page_size, spec.mla.rope), spec.kv_dtype),
    )
    return (KVLayout("latent/1", page_size, planes, nhd.kernel_pages, any_page_stride=True),)


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
