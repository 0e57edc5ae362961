"""Layers with latents, in absorbed form: decode by `mla_decode_fwd` in persistent mode, all else by the extend kernel.

Prompts are better not absorbed: `attend_dense`, `gather` and `merge` are for layers that own the up-projection.
"""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.attention import AttentionBuild, AttentionPlan, LayerHandle, SlotMover
from srtkit.spec.facts import Limits
from srtkit.spec.layers import DTYPES as TORCH_DTYPES
from srtkit_plugin_attention_aiter.backend import AiterAttention
from srtkit_plugin_attention_aiter.dense import AiterDense
from srtkit_plugin_attention_aiter.library import Library
from srtkit_plugin_attention_aiter.step import AiterPlan, Call, extend, slots_of
from srtkit_plugin_attention_aiter.table import LATENT, MLA_HEADS, MLA_QUERIES, heads_padded, routes
from srtkit_plugin_attention_triton.slots import PlaneMover, store

WORK = ("work_meta_data", "work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map")
"""The kernel's plan of its work: in the order of `get_mla_metadata_info_v1`, by the names of `mla_decode_fwd`."""


class MlaAttention(AiterAttention):
    """Absorbed attention over latents of one layer group."""

    def __init__(self, build: AttentionBuild, library: Library) -> None:
        spec = build.group.spec
        super().__init__(build, library, routes(spec), LatentMover(), AiterDense(spec, library))
        self._heads = heads_padded(spec.q_heads)
        self._dtype = TORCH_DTYPES[spec.dtype]

    def new_plan(self, limits: Limits) -> AiterPlan:
        """Buffers for the list of slots and for the kernel's plan of its work. Raises `OutOfMemory`."""
        if self._routes.one != "mla":
            return AiterPlan(self._platform, limits.max_rows)
        made = self._library.work_shapes(
            batch_size=limits.max_rows,
            max_seqlen_qo=MLA_QUERIES if self._heads == MLA_HEADS else 1,
            num_head_qo=self._heads,
            q_dtype=self._dtype,
            kv_dtype=self._dtype,
            is_sparse=False,
            fast_mode=True,
        )
        shapes = (shape if isinstance(shape, tuple) else (shape,) for shape, _ in made)
        work = {name: (shape, dtype) for name, shape, (_, dtype) in zip(WORK, shapes, made, strict=True)}
        units = limits.max_pages * limits.page_size
        return AiterPlan(self._platform, limits.max_rows, units=units, more=work)

    def look_up(self, plan: AiterPlan, call: Call) -> None:
        """The list of slots for `mla_decode_fwd`, and its plan of the work."""
        plan.list_keys(call, 1)
        self._plan_work(plan, call)

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Copy latents and rope parts to the step's slots, in one launch."""
        assert isinstance(plan, AiterPlan)
        store(_apart(layer), plan.step[1].slot_mapping, (k, v))

    def run(self, plan: AiterPlan, call: Call, layer: LayerHandle, q: Tensor, out: Tensor) -> None:
        """Values are the first part of keys."""
        keys = slots_of(layer, "latent_rope")[:, None]
        if call.kernel == "mla":
            self._decode(plan, call, keys, q, out)
        else:
            extend(self._library, call, (keys, keys[..., : LATENT[0]]), q, out, self._spec)

    def _plan_work(self, plan: AiterPlan, call: Call) -> None:
        """Refill the kernel's plan of its work. Its pages have one token, whatever the pool's have (sglang #25556)."""
        assert call.lists is not None
        indptr, _, last = call.lists
        work = {name: plan.buffers[name] for name in WORK}
        meta, info = work.pop("work_meta_data"), work.pop("work_info_set")
        only: dict[str, object] = {"work_info": info}
        if self._library.newer:
            only = {"work_info_set": info, "kv_last_page_lens": last, "page_size": 1}
            only |= {"dtype_q": self._dtype, "dtype_kv": self._dtype}
        self._library.plan_work(
            seqlens_qo_indptr=call.rows.cu_q,
            seqlens_kv_indptr=indptr,
            num_heads_per_head_k=self._heads,
            num_heads_k=1,
            is_causal=True,
            work_metadata_ptrs=meta,
            kv_granularity=16,
            max_seqlen_qo=call.q_len,
            uni_seqlen_qo=call.q_len,
            fast_mode=True,
            **work,
            **only,
        )

    def _decode(self, plan: AiterPlan, call: Call, keys: Tensor, q: Tensor, out: Tensor) -> None:
        """Few queries a row. Heads are filled up to a multiple of 16, which there are kernels for."""
        assert call.lists is not None
        indptr, indices, last = call.lists
        tokens, heads, size = q.shape
        into = out
        if heads != self._heads:
            q = torch.cat((q, q.new_zeros(tokens, self._heads - heads, size)), 1)
            into = out.new_empty(tokens, self._heads, out.shape[2])
        self._library.mla(
            q=q.contiguous(),
            kv_buffer=keys[:, None],
            o=into,
            qo_indptr=call.rows.cu_q,
            kv_indptr=indptr,
            kv_indices=indices,
            kv_last_page_lens=last,
            max_seqlen_q=call.q_len,
            sm_scale=self._spec.scale,
            # Given, so that later versions keep to the mode that the work was planned for.
            num_kv_splits=len(plan.buffers["work_indptr"]) - 1,
            **{name: plan.buffers[name] for name in WORK},
        )
        if into is not out:
            out.copy_(into[:, :heads])


class LatentMover(SlotMover):
    """Moves stored tokens."""

    def move_slots(self, layer: LayerHandle, source: Tensor, target: Tensor) -> None:
        """Copy the entries at int32 `source` [n] to `target` [n]."""
        PlaneMover().move_slots(_apart(layer), source, target)


def _apart(layer: LayerHandle) -> LayerHandle:
    """The layer with latent and rope part as two planes of pages of one token, as `latent/1` names them."""
    whole = slots_of(layer, "latent_rope")[:, None]
    return LayerHandle(layer.index, {"latent": whole[..., : LATENT[0]], "rope": whole[..., LATENT[0] :]})
