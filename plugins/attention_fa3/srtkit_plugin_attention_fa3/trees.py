"""What drafts in trees see of each other: the operator has no masks, so a kernel of ours joins it to what it computed.

Knows one call over leading rows; what the operator does, and when, is the backend's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from srtkit.spec.attention import AttentionSpec, LayerHandle
from srtkit_plugin_attention_fa3.kernels import tree_kernel
from srtkit_plugin_attention_triton.slots import planes_of

TILE = 32


@dataclass(frozen=True)
class Drafts:
    """Leading rows with trees: `bits` int32 [rows, q_len, words], `positions` int32 [tokens], `context` int32 [rows].

    `table` int32 [rows, pages].
    """

    bits: Tensor
    positions: Tensor
    context: Tensor
    table: Tensor
    page_tokens: int


def join(
    spec: AttentionSpec, drafts: Drafts, layer: LayerHandle, q: Tensor, out: Tensor, prefix_lse: Tensor | None
) -> Tensor:
    """Add to `out` what drafts see of each other, and give the log-sums of all they see, float32 [tokens, heads].

    `out` is what they see of the tokens stored before, with `prefix_lse` [tokens, heads]; both are None and not yet
    written where there is a window, which is then computed here. q [tokens, heads, size] with dense heads.
    """
    rows, q_len, words = drafts.bits.shape
    k, v = (plane if plane.dim() == 4 else plane[:, :, None] for plane in planes_of(layer))
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    group = spec.q_heads // spec.kv_heads
    v_pad = _padded(spec.v_head_dim)
    most = 64 if v_pad <= 128 else 32 if v_pad <= 256 else 16
    block_m = min(most, _padded(q_len * group))
    tree_kernel[(rows, spec.kv_heads, triton.cdiv(q_len * group, block_m))](
        *(q, k, v, out, prefix_lse, lse, drafts.bits, drafts.positions, drafts.context, drafts.table),
        *(spec.scale, spec.soft_cap, q_len, drafts.table.stride(0), q.stride(0), q.stride(1)),
        *(*k.stride()[:3], *v.stride()[:3], out.stride(0), out.stride(1)),
        *((0, 0) if prefix_lse is None else prefix_lse.stride()),
        HEADS=spec.q_heads,
        GROUP=group,
        HEAD=k.shape[3],
        HEAD_PAD=_padded(k.shape[3]),
        V_HEAD=spec.v_head_dim,
        V_PAD=v_pad,
        LATENT=spec.mla is not None,
        SOFT_CAP=spec.soft_cap > 0,
        WINDOW=spec.window,
        WORDS=words,
        PAGE=drafts.page_tokens,
        BLOCK_M=block_m,
        TILE=TILE,
        UPCAST=q.device.type == "cpu",
        num_warps=4,
    )
    return lse


def _padded(size: int) -> int:
    """A size that a matrix unit takes."""
    return int(max(16, triton.next_power_of_2(size)))
