"""Layers with keys and values: prompts by batch prefill, decode by ragged paged attention, all else by Triton kernels.

table.py says which. What a call of leading rows is given by the host depends on numbers of rows and on the run's
limits only, so a recorded one stays right under every later fill.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from srtkit.spec.attention import AttentionBuild, AttentionPlan, LayerHandle
from srtkit.spec.facts import Limits
from srtkit.spec.layers import DTYPES as TORCH_DTYPES
from srtkit_plugin_attention_aiter import PART
from srtkit_plugin_attention_aiter.backend import AiterAttention
from srtkit_plugin_attention_aiter.dense import AiterDense
from srtkit_plugin_attention_aiter.indices import TABLE_PAD
from srtkit_plugin_attention_aiter.library import Library
from srtkit_plugin_attention_aiter.step import AiterPlan, Call, as_units, extend, prefill, slots_of
from srtkit_plugin_attention_aiter.table import DECODE_PART, DECODE_UNIT, PREFILL_BYTES, routes
from srtkit_plugin_attention_triton.slots import PlaneMover, store

_log = logging.getLogger(__name__)
SMALLEST_TILE = 16
"""Keys that a matrix product of `unified_attention` needs."""


class MhaAttention(AiterAttention):
    """Paged attention of one layer group of keys and values."""

    def __init__(self, build: AttentionBuild, library: Library) -> None:
        spec, platform, page = build.group.spec, build.platform, build.layout.page_tokens
        super().__init__(build, library, routes(spec), PlaneMover(), AiterDense(spec, library))
        self._unit = min(page, DECODE_UNIT)
        self._longest = build.limits.max_context
        self._parts_of_row = -(-build.limits.max_pages * page // DECODE_PART)
        # Partial results last for one call, and calls follow each other in one stream: all plans share their room.
        part = TORCH_DTYPES[spec.dtype].itemsize * spec.head_dim + 8  # a result, its sum and its maximum
        size = build.limits.max_rows * spec.q_heads * self._parts_of_row * part
        decode = self._routes.one == "decode"
        self._workspace = platform.allocate("workspace", (size if decode else 0,), torch.uint8)
        self._told = False
        self._one = platform.allocate("workspace", (1,), torch.float32).fill_(1)

    def new_plan(self, limits: Limits) -> AiterPlan:
        """Buffers for the page table, and for a list of pages where ragged attention decodes. Raises `OutOfMemory`."""
        units = limits.max_pages * limits.page_size // self._unit if self._routes.one == "decode" else 0
        return AiterPlan(self._platform, limits.max_rows, units=units, pages=limits.max_pages)

    def look_up(self, plan: AiterPlan, call: Call) -> None:
        """Lists for ragged and batch-prefill kernels, tables for the unified one, which may have to take prompts."""
        if call.kernel == "decode":
            plan.list_keys(call, self._unit)
        else:
            plan.tabulate_keys(call, self._spec.window)
            if call.kernel == "prefill":
                plan.list_keys(call, 1)

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Copy k and v to the step's slots, in one launch."""
        assert isinstance(plan, AiterPlan)
        store(layer, plan.step[1].slot_mapping, (k, v))

    def close(self) -> None:
        """Free the room for partial results."""
        self._workspace = torch.empty(0)

    def run(self, plan: AiterPlan, call: Call, layer: LayerHandle, q: Tensor, out: Tensor) -> None:
        """Scales by KV head go into q and out: kernels take one."""
        spec = self._spec
        k_scale, v_scale = self._scale(layer, "k"), self._scale(layer, "v")
        if k_scale.numel() > 1:
            q, k_scale = torch.mul(q, _by_head(k_scale, spec.q_heads), out=torch.empty_like(q)), self._one
        v_heads = v_scale if v_scale.numel() > 1 else None
        scales = k_scale, self._one if v_heads is not None else v_scale
        if call.kernel == "decode":
            self._decode(call, layer, q, out, scales)
        elif call.kernel == "prefill" and self._fits(layer.planes["k"]):
            prefill(self._library, call, (slots_of(layer, "k"), slots_of(layer, "v")), q, out, spec)
        elif call.kernel == "extend":
            extend(self._library, call, (slots_of(layer, "k"), slots_of(layer, "v")), q, out, spec)
        else:
            self._unified(call, layer, q, out, scales)
        if v_heads is not None:
            out.mul_(_by_head(v_heads, spec.q_heads))

    def _decode(self, call: Call, layer: LayerHandle, q: Tensor, out: Tensor, scales: tuple[Tensor, Tensor]) -> None:
        """One query a row, over pages of at most 16 tokens."""
        assert call.lists is not None
        indptr, indices, last = call.lists
        self._library.decode(
            out=out,
            workspace_buffer=self._workspace,
            query=q if q.stride(1) == q.shape[2] else q.contiguous(),
            key_cache=as_units(layer.planes["k"], self._unit),
            value_cache=as_units(layer.planes["v"], self._unit),
            scale=self._spec.scale,
            kv_indptr=indptr,
            kv_page_indices=indices,
            kv_last_page_lens=last,
            block_size=self._unit,
            max_num_partitions=self._parts_of_row,
            alibi_slopes=None,
            kv_cache_dtype="auto" if self._spec.kv_dtype == self._spec.dtype else "fp8_e4m3",
            kv_cache_layout="NHD",
            logits_soft_cap=self._spec.soft_cap,
            k_scale=scales[0].view(1),
            v_scale=scales[1].view(1),
        )

    def _unified(self, call: Call, layer: LayerHandle, q: Tensor, out: Tensor, scales: tuple[Tensor, Tensor]) -> None:
        """Lengths are of 64 bits: then the kernel computes offsets in 64 too.

        Its kernels for decode and for long keys have tiles no longer than a page, which is too short for pages of one
        token. With a window its other kernel runs: one as long as the longest row is none.
        """
        assert call.table is not None
        (table, lengths), unit = call.table, call.rows.page
        spec, short = self._spec, unit < SMALLEST_TILE
        window = spec.window - 1 if spec.window else self._longest if short else -1
        fp8 = spec.kv_dtype != spec.dtype
        assert (layer.sinks is not None) == spec.sinks, "the layer came without its sinks"
        self._library.unified(
            q=q,
            k=as_units(layer.planes["k"], unit),
            v=as_units(layer.planes["v"], unit),
            out=out,
            cu_seqlens_q=call.rows.cu_q,
            max_seqlen_q=max(call.q_len, 2) if short else call.q_len,
            seqused_k=lengths,
            max_seqlen_k=(table.shape[1] - TABLE_PAD) * unit,
            softmax_scale=spec.scale,
            causal=True,
            window_size=(window, 0 if window >= 0 else -1),
            block_table=table,
            softcap=spec.soft_cap,
            q_descale=None,
            k_descale=scales[0] if fp8 else None,
            v_descale=scales[1] if fp8 else None,
            sinks=layer.sinks,
        )

    def _fits(self, plane: Tensor) -> bool:
        """Whether batch prefill finds its way in a plane; says once that it does not."""
        if plane.nbytes <= PREFILL_BYTES:
            return True
        if not self._told:
            self._told = True
            text = "%s: prompts go to unified_attention: the keys of a layer take %.2f GiB, and mha_batch_prefill_func"
            text += " reads at most %d; a lower memory.fraction keeps them below"
            _log.warning(text, PART, plane.nbytes / (1 << 30), PREFILL_BYTES >> 30)
        return False

    def _scale(self, layer: LayerHandle, name: str) -> Tensor:
        """What stored entries are multiplied by: float32 [1] or [KV heads]."""
        if layer.scales is None or self._spec.kv_dtype == self._spec.dtype:
            return self._one
        return layer.scales.get(name, self._one)


def _by_head(scale: Tensor, q_heads: int) -> Tensor:
    """[KV heads] → [query heads, 1]."""
    return scale.repeat_interleave(q_heads // len(scale), output_size=q_heads)[:, None]
