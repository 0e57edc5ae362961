"""Attention backend `my-plugin`: the descriptor. Data and pure functions; `build` imports torch.

It says yes to causal attention with grouped heads over "nhd/1" pages. What it does not name, core
refuses before a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionCapabilities,
    AttentionDescriptor,
    AttentionSpec,
)
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.kv import KVLayout, nhd_layout

DTYPES = frozenset({"float32", "bfloat16", "float16"})
PAGE_SIZES = (16, 1, 2, 4, 8, 32, 64, 128, 256)


class Options(BaseModel):
    """The table `[attention.options.my-plugin]`; a key that is not here is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    score_dtype: Literal["float32", "float64"] = "float32"
    """What scores, softmax and sums are computed in."""


def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
    """What the backend can do on this device. A field that is not set means no."""
    dtypes = DTYPES & facts.dtypes
    return AttentionCapabilities(
        dtypes=dtypes,
        kv_dtypes=dtypes,
        head_dims=range(1, 513),
        page_sizes=PAGE_SIZES,
        features=frozenset(),
        host_lengths="exact",
        capture="never",
    )


def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
    """How pages may lie in memory, best first; none for pages that are not declared."""
    if page_size not in PAGE_SIZES:
        return []
    return [nhd_layout(page_size, spec.kv_heads, spec.head_dim, spec.v_head_dim, spec.kv_dtype)]


def build(given: AttentionBuild) -> AttentionBackend:
    """The backend of one layer group. Raise `DeviceAbsent` here when the hardware is not there."""
    from srtkit_plugin_attention_my_plugin.backend import MyPluginBackend

    return MyPluginBackend(given)


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers the backend `my-plugin`."""
    return AttentionDescriptor(
        contract="1.1",
        options=Options,
        capabilities=capabilities,
        kv_layouts=kv_layouts,
        build=build,
    )
