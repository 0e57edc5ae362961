"""`attention:cpu-native`: the descriptor. No torch; `build` imports the backend."""

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
from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.kv import KVLayout, nhd_layout
from srtkit_plugin_cpu_native import LIBRARY, NOT_BUILT

PART = "attention:cpu-native"
DTYPES = frozenset({"bfloat16", "float32"})
HEAD_DIMS = range(16, 257, 16)
PAGE_SIZES = (16, *(size for size in range(1, 257) if size != 16))
MAX_GQA_RATIO = 64


class Options(BaseModel):
    """`[attention.options]` of this plugin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    share_prefixes: bool = Field(True, description="read a prefix that rows of a step share once for all of them")


def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
    """Attention over KV of the model's own dtype. Nothing on devices other than the CPU."""
    return AttentionCapabilities(
        dtypes=DTYPES if facts.platform == "cpu" else frozenset(),
        kv_dtypes=DTYPES,
        head_dims=HEAD_DIMS,
        page_sizes=PAGE_SIZES,
        features=frozenset({"window", "soft_cap", "sinks", "non_causal"}),
        max_gqa_ratio=MAX_GQA_RATIO,
        host_lengths="exact",
        capture="never",
        max_q_len_decode=256,
        lse=YES,
        prefix_groups=YES,
        batch_invariant=No("rows that share a prefix are computed in two parts, which rounds differently"),
    )


def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
    """`nhd/1`; keys and values of one size, in the model's dtype."""
    uniform = spec.mla is None and spec.head_dim == spec.v_head_dim and spec.kv_dtype == spec.dtype
    if page_size not in PAGE_SIZES or not uniform:
        return ()
    return (nhd_layout(page_size, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.kv_dtype),)


def build(build: AttentionBuild) -> AttentionBackend:
    """The backend of one layer group. Raises `Unsupported` for a spec it does not cover."""
    from srtkit_plugin_cpu_native.backend import NativeAttention

    return NativeAttention(build)


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers `attention:cpu-native`. Raises `DeviceAbsent` without the library."""
    if not LIBRARY.exists():
        raise DeviceAbsent(PART, NOT_BUILT, "install GCC and then this distribution again, or its wheel")
    return AttentionDescriptor(
        contract="1.0", options=Options, capabilities=capabilities, kv_layouts=kv_layouts, build=build
    )
