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
from srtkit.spec.kv import KVLayout, Plane, nhd_layout

PART = "attention:fa3"
DTYPES = frozenset({"bfloat16", "float16"})
PAGE_SIZES = (128, 64, 16, *(size for size in range(1, 257) if size not in (16, 64, 128)))
"""Any; with 128 long queries load whole pages by TMA."""
LATENT_DIMS = frozenset({320, 576})
"""Of latent layers only: rank and rope part together."""
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
    shared_prefixes: bool = Field(
        False, description="decode rows that share pages attend to those together, in a call more for every layer"
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
        head_dims=frozenset(range(8, 257, 8)) | LATENT_DIMS,
        page_sizes=PAGE_SIZES,
        features=frozenset({"window", "soft_cap", "sinks", "non_causal", "tree_mask", "mla"}),
        max_gqa_ratio=256,
        host_lengths="upper",
        capture="uniform",
        max_q_len_decode=MAX_Q_LEN,
        lse=YES,
        dense=No("attends over stored keys and this step's own only"),
        advance=YES,
        move_slots=YES,
        prefix_groups=No("finds rows that share pages by itself, where shared_prefixes is set"),
        batch_invariant=No("the operator chooses by the batch into how many parts a row's keys are cut"),
    )


def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
    """`nhd/1`, or `latent/1` for MLA, in the dtype of the computation; none for pairs of sizes without a kernel."""
    if page_size not in PAGE_SIZES or spec.kv_dtype != spec.dtype or no_kernel(spec):
        return ()
    nhd = nhd_layout(page_size, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.kv_dtype)
    if spec.mla is None:
        return (nhd,)
    planes = (
        Plane("latent", (page_size, spec.mla.rank), spec.kv_dtype),
        Plane("rope", (page_size, spec.mla.rope), spec.kv_dtype),
    )
    return (KVLayout("latent/1", page_size, planes, nhd.kernel_pages, any_page_stride=True),)


def no_kernel(spec: AttentionSpec) -> str:
    """Why the operator does not take heads of these sizes, as the end of a sentence; empty if it does."""
    size, v_size, mla = spec.head_dim, spec.v_head_dim, spec.mla
    if mla is not None:
        if (spec.kv_heads, size, v_size) != (1, mla.rank + mla.rope, mla.rank):
            return "takes MLA in absorbed form: one KV head, head size rank + rope, value size rank"
        if mla.rope > 64 or mla.rope % 8 or not 256 <= mla.rank <= 512 or mla.rank % 8:
            return f"has no kernel for latents of size {mla.rank} with rope parts of size {mla.rope}"
        return "takes latents with neither window nor soft cap" if spec.window or spec.soft_cap else ""
    narrow = size <= 64 and v_size <= 512
    other = v_size % 8 == 0 and (narrow or (128 < size <= 192 and 96 < v_size <= 128))
    if size > 256 or (size != v_size and not other):
        return f"has no kernel for keys of size {size} with values of size {v_size}"
    return ""


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
