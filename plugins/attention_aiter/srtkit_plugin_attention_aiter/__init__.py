"""AMD's aiter on MI300 and MI350: the descriptor. Imports neither torch nor aiter; `build` finds the library.

table.py says which of aiter's kernels takes which rows, and what none of them can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionCapabilities,
    AttentionDescriptor,
    AttentionSpec,
    check_spec,
)
from srtkit.spec.capabilities import YES, No, NoOptions
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.kv import KVLayout, Plane, nhd_layout
from srtkit_plugin_attention_aiter.table import (
    DTYPES,
    FP8,
    HEAD_DIMS,
    LATENT,
    MAX_GQA_RATIO,
    MAX_Q_LEN,
    PAGE_SIZES,
    why_not,
)

PART = "attention:aiter"
INSTEAD = 'name another backend, e.g. attention.use = "triton"'
NHD = "nhd/1"
LATENT_ROPE = "latent-rope/1"
"""One plane [page tokens, rank + rope]: latent and rope part of a token side by side, as aiter's kernels read them."""


def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
    """What aiter does on gfx942 and gfx950. Raises `Unsupported` for any other device."""
    on_device(PART, facts)
    return declared(facts.architecture, DTYPES & facts.dtypes)


def declared(architecture: str, dtypes: frozenset[str] = DTYPES) -> AttentionCapabilities:
    """The capabilities on an architecture of the table. Lengths are read on the device: steps may be recorded."""
    return AttentionCapabilities(
        dtypes=dtypes,
        kv_dtypes=DTYPES | {FP8[architecture]},
        head_dims=HEAD_DIMS | {sum(LATENT)},
        page_sizes=PAGE_SIZES,
        features=frozenset({"window", "soft_cap", "sinks", "tree_mask", "mla", "fp8_kv"}),
        max_gqa_ratio=MAX_GQA_RATIO,
        host_lengths="upper",
        capture="uniform",
        max_q_len_decode=MAX_Q_LEN,
        lse=No("aiter's decode kernels give none"),
        dense=YES,
        advance=YES,
        move_slots=YES,
        prefix_groups=No("reads a shared prefix once for each row"),
        batch_invariant=No("into how many parts a row's keys are cut depends on the batch"),
    )


def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
    """`nhd/1` of adjacent pages, in the dtype of the computation or the device's fp8; for MLA a layout of its own.

    None for fp8 with MLA: no kernel of aiter's reads prompts from such pages without another rounding.
    """
    if page_size not in PAGE_SIZES or why_not(spec, FP8.get(facts.architecture), newer=True):
        return ()
    nhd = nhd_layout(page_size, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.kv_dtype)
    if spec.mla is None:
        return (replace(nhd, any_page_stride=False),)
    plane = Plane("latent_rope", (page_size, sum(LATENT)), spec.kv_dtype)
    return (KVLayout(LATENT_ROPE, page_size, (plane,), nhd.kernel_pages),)


def refusal(build: AttentionBuild, architecture: str, *, newer: bool) -> str:
    """Why spec or layout are not among those declared, or this version of aiter lacks the kernels; empty if neither."""
    spec, layout = build.group.spec, build.layout
    if reason := check_spec(PART, spec, declared(architecture)) or why_not(spec, FP8[architecture], newer=newer):
        return reason
    if layout.name != (NHD if spec.mla is None else LATENT_ROPE) or layout.page_tokens not in PAGE_SIZES:
        return f"does not read the layout {layout.name} with pages of {layout.page_tokens}"
    return ""


def build(build: AttentionBuild) -> AttentionBackend:
    """The backend of one layer group; aiter compiles its kernels here, or finds them compiled.

    Raises `Unsupported` for a spec it does not cover, `DeviceAbsent` without ROCm, aiter or a GPU of the table.
    """
    from srtkit_plugin_attention_aiter import mha, mla, warmup

    kind = mha.MhaAttention if build.group.spec.mla is None else mla.MlaAttention
    return warmup.built(PART, build, refusal, kind)


def on_device(part: str, facts: DeviceFacts) -> None:
    """Raise `Unsupported`, in the name of `part`, for a device that aiter has no kernels for."""
    if facts.platform != "rocm" or facts.architecture not in FP8:
        here = f"{facts.name} is {facts.platform} {facts.architecture}"
        raise Unsupported(part, f"its kernels are for AMD's {' and '.join(FP8)}, and {here}", INSTEAD)


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers `attention:aiter`."""
    return AttentionDescriptor(
        contract="1.0", options=NoOptions, capabilities=capabilities, kv_layouts=kv_layouts, build=build
    )
