"""Layers over vectorised pages: decode by `pa_fwd_asm`, all else by batch prefill; storing and moving tokens there."""

from __future__ import annotations

import math
from typing import Any

import triton  # type: ignore[import-untyped]
from torch import Tensor

from srtkit.spec.attention import AttentionBuild, AttentionPlan, LayerHandle, SlotMover
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import Limits
from srtkit_plugin_attention_aiter.backend import AiterAttention
from srtkit_plugin_attention_aiter.library import Library
from srtkit_plugin_attention_aiter.step import AiterPlan, Call, prefill
from srtkit_plugin_attention_aiter.table import PREFILL_BYTES, VEC_PAGE, VEC_PAGES, Routes
from srtkit_plugin_attention_aiter.vec import PART
from srtkit_plugin_attention_aiter.vec_kernels import copy_kernel


class VecAttention(AiterAttention):
    """Paged attention of one layer group of vectorised keys and values."""

    part = PART
    features = frozenset()
    longest_query = 1

    def __init__(self, build: AttentionBuild, library: Library) -> None:
        super().__init__(build, library, Routes("asm", "prefill", "prefill", "prefill"), VecMover())
        # The kernel has head_dim ** -0.5 built in. Of a scale that is that, a rounding is left.
        factor = self._spec.scale * self._spec.head_dim**0.5
        self._factor = 1.0 if math.isclose(factor, 1.0, rel_tol=1e-6) else factor

    def new_plan(self, limits: Limits) -> AiterPlan:
        """A buffer for the page table. Raises `OutOfMemory`."""
        return AiterPlan(self._platform, limits.max_rows, pages=limits.max_pages)

    def look_up(self, plan: AiterPlan, call: Call) -> None:
        """A table of pages for decode rows, a list for the others."""
        if call.kernel == "asm":
            plan.tabulate_keys(call)
        else:
            plan.list_keys(call, VEC_PAGE)

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Copy k and v to the step's slots, in one launch."""
        assert isinstance(plan, AiterPlan)
        store(layer, plan.step[1].slot_mapping, k.contiguous(), v.contiguous())

    def run(self, plan: AiterPlan, call: Call, layer: LayerHandle, q: Tensor, out: Tensor) -> None:
        """Raises `Unsupported` for layers of more pages than the kernels find their way in."""
        k, v = layer.planes["k"], layer.planes["v"]
        if len(k) > VEC_PAGES or k.nbytes > PREFILL_BYTES:
            has = f"{len(k)} pages, {k.nbytes / (1 << 30):.1f} GiB a plane"
            cause = f"reads at most {VEC_PAGES} pages and {PREFILL_BYTES >> 30} GiB a plane, and a layer has {has}"
            remedy = 'lower memory.fraction or memory.kv_gib, or set attention.use = "aiter"'
            raise Unsupported(PART, cause, remedy)
        if call.kernel == "asm":
            assert call.table is not None
            q = q if q.stride(1) == q.shape[2] else q.contiguous()
            table = call.table[0]
            self._library.asm(
                Q=q if self._factor == 1 else q * self._factor,
                K=k,
                V=v,
                block_tables=table,
                context_lens=call.rows.context,
                block_tables_stride0=table.stride(0),
                out_=out,
            )
            return
        assert call.lists is not None
        prefill(self._library, call, (k, v), q, out, self._spec, kv_last_page_lens=call.lists[2])


def store(layer: LayerHandle, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Write k and v [T, KV heads, size], dense, at int32 `slots` [T]."""
    copy_kernel[(len(k),)](k, v, k, slots, layer.planes["k"], layer.planes["v"], MOVE=False, **_sizes(layer))


class VecMover(SlotMover):
    """Moves stored tokens."""

    def move_slots(self, layer: LayerHandle, source: Tensor, target: Tensor) -> None:
        """Copy the entries at int32 `source` [n] to `target` [n]."""
        if len(source):
            k, v = layer.planes["k"], layer.planes["v"]
            copy_kernel[(len(source),)](k, v, source, target, k, v, MOVE=True, **_sizes(layer))


def _sizes(layer: LayerHandle) -> dict[str, Any]:
    """Of the planes, as the kernel wants them."""
    _, heads, vectors, page, x = layer.planes["k"].shape
    size = vectors * x
    return {"HEADS": heads, "SIZE": size, "PAGE": page, "X": x, "PAD": triton.next_power_of_2(heads * size)}
