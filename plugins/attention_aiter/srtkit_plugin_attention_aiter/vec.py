"""aiter over vectorised pages, `attention:aiter-vec`: the descriptor. Imports neither torch nor aiter.

For decode by the assembler kernel `pa_fwd_asm`, which reads keys and values in vectors of 16 bytes. It is for heads of
128, pages of 16 and no window; prompts over such pages need an aiter after 0.1.7.
"""

from __future__ import annotations

from collections.abc import Sequence

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionCapabilities,
    AttentionDescriptor,
    AttentionSpec,
    check_spec,
)
from srtkit.spec.capabilities import YES, No, NoOptions
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.kv import ITEM_BYTES, KVLayout, Plane
from srtkit_plugin_attention_aiter import on_device
from srtkit_plugin_attention_aiter.table import DTYPES, VEC_HEAD_DIM, VEC_PAGE, VEC_RATIO

PART = "attention:aiter-vec"
VEC = "vec/1"
VECTOR_BYTES = 16


def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
    """What aiter does over such pages on gfx942 and gfx950. Raises `Unsupported` for any other device."""
    on_device(PART, facts)
    return declared(DTYPES & facts.dtypes)


def declared(dtypes: frozenset[str] = DTYPES) -> AttentionCapabilities:
    """The capabilities on a device of the table."""
    return AttentionCapabilities(
        dtypes=dtypes,
        kv_dtypes=DTYPES,
        head_dims=frozenset({VEC_HEAD_DIM}),
        page_sizes=(VEC_PAGE,),
        max_gqa_ratio=VEC_RATIO,
        host_lengths="upper",
        capture="one_token",
        lse=No("aiter's decode kernels give none"),
        dense=No("that is attention:aiter's"),
        advance=YES,
        move_slots=YES,
        prefix_groups=No("reads a shared prefix once for each row"),
        batch_invariant=No("tiles of prompts are chosen by the batch"),
    )


def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
    """`vec/1`: keys [KV heads, size / x, page tokens, x], values [KV heads, tokens / x, size, x]; x is 16 bytes."""
    even = (spec.kv_dtype, spec.v_head_dim) == (spec.dtype, spec.head_dim)
    if page_size != VEC_PAGE or not even or check_spec(PART, spec, declared()):
        return ()
    x, heads, size = VECTOR_BYTES // ITEM_BYTES[spec.kv_dtype], spec.kv_heads, spec.head_dim
    k = Plane("k", (heads, size // x, page_size, x), spec.kv_dtype)
    v = Plane("v", (heads, page_size // x, size, x), spec.kv_dtype)
    return (KVLayout(VEC, page_size, (k, v), (page_size,)),)


def refusal(build: AttentionBuild, architecture: str, *, newer: bool) -> str:
    """As `attention:aiter`'s; all architectures of the table are alike."""
    if reason := check_spec(PART, build.group.spec, declared()):
        return reason
    if build.layout.name != VEC:
        return f"does not read the layout {build.layout.name}"
    return "" if newer else "reads prompts from vectorised pages with an aiter after 0.1.7 only"


def build(build: AttentionBuild) -> AttentionBackend:
    """The backend of one layer group. Raises as `attention:aiter` does."""
    from srtkit_plugin_attention_aiter import warmup
    from srtkit_plugin_attention_aiter.vectorised import VecAttention

    return warmup.built(PART, build, refusal, VecAttention)


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers `attention:aiter-vec`."""
    return AttentionDescriptor(
        contract="1.0", options=NoOptions, capabilities=capabilities, kv_layouts=kv_layouts, build=build
    )
