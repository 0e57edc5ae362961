"""Latent attention (MLA) in absorbed form: what is stored of a token is one latent and one rotated part for all heads.

kv_b, which would make keys and values of a latent, is applied to queries and outputs instead: views of the one stored
weight, in two batched products a step. Knows no backend; the layout of stored entries is the backend's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.layers import DTYPES, Linear, PagedAttention, RMSNorm
from srtkit.spec.models import ModelBuild
from srtkit_plugin_models.config import DecoderConfig, LatentConfig

LATENT_EPS = 1e-6
"""Of the norms of latents: these architectures do not read `rms_norm_eps` for them."""


class LatentAttention:
    """[T, hidden] → [T, hidden]. `kv_b` [heads * (nope + v_head_dim), rank] stays as it is stored, at its address."""

    def __init__(self, build: ModelBuild, config: DecoderConfig, latent: LatentConfig, index: int) -> None:
        spec, dims, dtype = build.plan.attention[index], latent.dims, build.plan.dtype
        heads, hidden = spec.q_heads, config.hidden_size
        self.dims, self.heads, self.interleaved = dims, heads, latent.interleaved
        self.parts = (latent.q_rank, dims.rank, dims.rope)
        self.qkv_a = Linear(build, (sum(self.parts), hidden), bias=config.qkv_bias)
        self.q_norm = None
        if latent.q_rank:
            self.q_norm = RMSNorm(build.ops, latent.q_rank, LATENT_EPS, dtype, build.device)
        self.q_proj = Linear(build, (heads * (dims.nope + dims.rope), latent.q_rank or hidden))
        self.kv_norm = RMSNorm(build.ops, dims.rank, LATENT_EPS, dtype, build.device)
        rows = dims.nope + dims.v_head_dim
        self.kv_b = torch.empty(heads * rows, dims.rank, dtype=DTYPES[dtype], device=build.device)
        keys, values = self.kv_b.view(heads, rows, dims.rank).split_with_sizes((dims.nope, dims.v_head_dim), 1)
        self.to_latent, self.from_latent = keys, values.mT
        self.o_proj = Linear(build, (hidden, heads * dims.v_head_dim), bias=config.o_bias, reduce=True)
        self.rope = build.ops.op("rope", dtype, head_dim=dims.rope, rotary=dims.rope)
        self.attention = PagedAttention(spec, index)

    def owners(self) -> dict[str, Linear | RMSNorm | None]:
        """Its parts that hold parameters, by their names in the layer."""
        return {
            "self_attn.qkv_a": self.qkv_a,
            "self_attn.q_a_layernorm": self.q_norm,
            "self_attn.q_proj" if self.q_norm is None else "self_attn.q_b_proj": self.q_proj,
            "self_attn.kv_a_layernorm": self.kv_norm,
            "self_attn.o_proj": self.o_proj,
        }

    def bare(self) -> dict[str, Tensor]:
        """The other parameters, by their names in the layer."""
        return {"self_attn.kv_b_proj.weight": self.kv_b}

    def __call__(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """`angles` are cos and sin [T, 1, rope] of the tokens' positions."""
        tokens, dims = x.shape[0], self.dims
        q_latent, latent, k_rope = self.qkv_a(x).split_with_sizes(self.parts, -1)
        full: Tensor = self.q_proj(x if self.q_norm is None else self.q_norm(q_latent))
        q_nope, q_rope = full.view(tokens, self.heads, -1).split_with_sizes((dims.nope, dims.rope), -1)
        q_rope, k_rope = self._halves(q_rope), self._halves(k_rope.unsqueeze(1))
        self.rope(q_rope, k_rope, *angles)
        q = x.new_empty(tokens, self.heads, dims.rank + dims.rope)
        q[..., dims.rank :] = q_rope
        torch.bmm(q_nope.transpose(0, 1), self.to_latent, out=q[..., : dims.rank].transpose(0, 1))
        attended = self.attention(q, self.kv_norm(latent), k_rope.squeeze(1))
        values = x.new_empty(tokens, self.heads, dims.v_head_dim)
        torch.bmm(attended.transpose(0, 1), self.from_latent, out=values.transpose(0, 1))
        out: Tensor = self.o_proj(values.view(tokens, -1))
        return out

    def _halves(self, x: Tensor) -> Tensor:
        """A dense copy in the order of the operator `rope`: first numbers of all pairs, then second ones.

        Queries and keys are reordered alike, so that their products stay.
        """
        return torch.cat((x[..., ::2], x[..., 1::2]), -1) if self.interleaved else x.contiguous()
