"""Attention in plain torch: the descriptor. Imports no torch; `build` imports the backend.

It covers every feature of the contract, so that other backends can be compared with it, and has a fast
path for what a CPU serves every day (backend.py says which).
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
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.kv import KVLayout, Plane, nhd_layout

FLOATS = frozenset({"float32", "bfloat16", "float16"})
FP8 = frozenset({"float8_e4m3fn", "float8_e4m3fnuz"})
PAGE_SIZES = (16, *(size for size in range(1, 257) if size != 16))


class Options(BaseModel):
    """`[attention.options]` of this plugin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fast: bool = Field(True, description="use the fast path where it applies; false: the reference path for every step")
    workspace_kib: int = Field(
        512, ge=16, description="keys that are gathered for one kernel call; half of a core's second-level cache"
    )


def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
    """All features of the contract, in the device's dtypes; fp8 is emulated (stored, computed in float32)."""
    return AttentionCapabilities(
        dtypes=FLOATS & facts.dtypes,
        kv_dtypes=FLOATS | FP8,
        head_dims=range(1, 1025),
        page_sizes=PAGE_SIZES,
        features=frozenset({"window", "soft_cap", "sinks", "non_causal", "mla", "fp8_kv", "tree_mask"}),
        host_lengths="exact",
        capture="never",
        max_q_len_decode=256,
        lse=YES,
        dense=YES,
        advance=YES,
        move_slots=YES,
        prefix_groups=YES,
        batch_invariant=No("rows that share a prefix are computed in two parts, which rounds differently"),
    )


def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
    """`nhd/1`, or `latent/1` for MLA: planes latent [page, rank] and rope [page, rope]."""
    if page_size not in PAGE_SIZES:
        return ()
    nhd = nhd_layout(page_size, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.kv_dtype)
    if spec.mla is None:
        return (nhd,)
    planes = (
        Plane("latent", (page_size, spec.mla.rank), spec.kv_dtype),
        Plane("rope", (page_size, spec.mla.rope), spec.kv_dtype),
    )
    return (KVLayout("latent/1", page_size, planes, nhd.kernel_pages, any_page_stride=True),)


def build(build: AttentionBuild) -> AttentionBackend:
    """The backend of one layer group. Raises `Unsupported` for a spec it does not cover."""
    from srtkit_plugin_attention_torch.backend import TorchAttention

    return TorchAttention(build)


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers `attention:torch`."""
    return AttentionDescriptor(
        contract="1.0", options=Options, capabilities=capabilities, kv_layouts=kv_layouts, build=build
    )
