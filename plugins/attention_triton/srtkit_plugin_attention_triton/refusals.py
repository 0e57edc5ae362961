"""Why a layer is refused that keeps its KV in `nhd/1` or `latent/1`: what plugins for these layouts have in common.

No torch and no Triton.
"""

from __future__ import annotations

from collections.abc import Container

from srtkit.spec.attention import AttentionBuild, AttentionCapabilities, check_spec


def why_not(part: str, build: AttentionBuild, can: AttentionCapabilities) -> str:
    """One sentence if `can` covers no layer of this spec in pages of this layout, else empty."""
    spec, layout = build.group.spec, build.layout
    if reason := check_spec(part, spec, can):
        return reason
    if spec.kv_dtype != spec.dtype and "fp8_kv" not in spec.features:
        return f"keeps KV in the model's {spec.dtype}, not in {spec.kv_dtype}"
    if spec.window and not spec.causal:
        return "has no meaning for a window without a causal mask"
    planes = ("k", "v") if spec.mla is None else ("latent", "rope")
    pages: Container[int] = can.page_sizes
    if layout.page_tokens not in pages or tuple(plane.name for plane in layout.planes) != planes:
        return f"does not read the layout {layout.name} with pages of {layout.page_tokens}"
    return ""
