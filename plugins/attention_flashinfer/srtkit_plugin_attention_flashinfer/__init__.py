"""FlashInfer's paged attention on NVIDIA: the descriptor. Imports no torch; `build` finds the package and the backend.

The kernels are those of the package flashinfer-python, which compiles them when they are first planned.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

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

PART = "attention:flashinfer"
DTYPES = frozenset({"bfloat16", "float16"})
FP8 = "float8_e4m3fn"
HEAD_DIMS = frozenset({64, 128, 256})
PAGE_SIZES = (16, 64, *(size for size in range(1, 257) if size not in (16, 64)))
MAX_GQA_RATIO = 64
MAX_Q_LEN = 16
"""Longest uniform query of leading rows: verified drafts, at most."""
INSTEAD = 'name another backend, e.g. attention.use = "triton"'


class Options(BaseModel):
    """`[attention.options.flashinfer]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prefill: Literal["auto", "fa2", "fa3"] = Field(
        "auto", description="kernels for prompts; auto: on sm90 FlashInfer's choice of fa2 and fa3, elsewhere fa2"
    )
    tensor_cores: Literal["auto", "always", "never"] = Field(
        "auto", description="for decode rows; auto: from 4 query heads on a KV head on and for fp8 KV, where they pay"
    )
    workspace_mib: int = Field(
        0, ge=0, description="room for partial results of all plans, in MiB; 0: what FlashInfer's planner can ask for"
    )


def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
    """What the wrappers do on sm80 and later. Raises `Unsupported` for any other device."""
    sm = re.match(r"sm(\d+)", facts.architecture)
    if facts.platform != "cuda" or sm is None or int(sm[1]) < 80:
        here = f"{facts.name} is {facts.platform} {facts.architecture}"
        raise Unsupported(PART, f"its kernels are for NVIDIA GPUs from sm80 on, and {here}", INSTEAD)
    return declared(DTYPES & facts.dtypes, fp8=facts.fp8 == "e4m3fn")


def declared(dtypes: frozenset[str], *, fp8: bool) -> AttentionCapabilities:
    """The capabilities on a device with these dtypes. The host plans by exact lengths, before a recorded step runs."""
    features = {"window", "soft_cap", "sinks", "non_causal", "tree_mask", *(["fp8_kv"] if fp8 else [])}
    return AttentionCapabilities(
        dtypes=dtypes,
        kv_dtypes=DTYPES | ({FP8} if fp8 else frozenset()),
        head_dims=HEAD_DIMS,
        page_sizes=PAGE_SIZES,
        features=frozenset(features),
        max_gqa_ratio=MAX_GQA_RATIO,
        host_lengths="exact",
        capture="uniform",
        max_q_len_decode=MAX_Q_LEN,
        lse=YES,
        dense=No("attends over stored keys only"),
        advance=No("FlashInfer plans on the host, from lengths that the host knows"),
        move_slots=YES,
        prefix_groups=No("reads a shared prefix once for each row"),
        batch_invariant=No("the planner chooses by the batch into how many parts a row's keys are cut"),
    )


def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
    """`nhd/1` in the dtype of the computation or fp8; none for MLA and for values of another size than keys."""
    fp8 = {FP8} & capabilities(facts).kv_dtypes
    if page_size not in PAGE_SIZES or spec.mla is not None or spec.kv_dtype not in {spec.dtype, *fp8}:
        return ()
    if spec.head_dim != spec.v_head_dim:
        return ()
    return (nhd_layout(page_size, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.kv_dtype),)


def build(build: AttentionBuild) -> AttentionBackend:
    """The backend of one layer group; FlashInfer compiles its kernels here, or finds them compiled.

    Raises `Unsupported` for a spec it does not cover, `DeviceAbsent` without FlashInfer, Triton or a fitting GPU.
    """
    try:
        import triton  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise DeviceAbsent(
            PART, f"Triton cannot be imported: {error}", "pip install triton, or a torch that brings its own"
        ) from error
    from srtkit_plugin_attention_flashinfer.backend import FlashInferAttention
    from srtkit_plugin_attention_flashinfer.library import find

    assert isinstance(build.options, Options)
    return FlashInferAttention(build, build.options, find())


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers `attention:flashinfer`."""
    return AttentionDescriptor(
        contract="1.0", options=Options, capabilities=capabilities, kv_layouts=kv_layouts, build=build
    )
