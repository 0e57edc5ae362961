"""Dense attention by aiter's `flash_attn_varlen_func`, reading entries back, and merging. For layers of both kinds."""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.attention import AttentionPlan, AttentionSpec, DenseAttention, LayerHandle
from srtkit.spec.errors import Unsupported
from srtkit_plugin_attention_aiter import PART
from srtkit_plugin_attention_aiter.library import Library
from srtkit_plugin_attention_aiter.step import AiterPlan, last_dense, slots_of
from srtkit_plugin_attention_aiter.table import WIDE


class AiterDense(DenseAttention):
    """The dense part of a layer group."""

    def __init__(self, spec: AttentionSpec, library: Library) -> None:
        self._spec = spec
        self._library = library

    def attend_dense(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu: tuple[Tensor, Tensor],
        out: Tensor,
        *,
        causal: bool = True,
        lse: Tensor | None = None,
    ) -> None:
        """As the contract says. Raises `Unsupported` for heads above 256, and for uneven ones but in bfloat16.

        The host knows no lengths: tensors' own are the bound. A `min_seqlen_q` above the true one gives wrong results.
        """
        spec, window = self._spec, self._spec.window
        if q.shape[-1] > WIDE:
            raise Unsupported(PART, f"has no dense kernel for head size {q.shape[-1]}")
        if q.shape[-1] != v.shape[-1] and spec.dtype != "bfloat16":
            raise Unsupported(PART, f"has dense kernels for values of another size in bfloat16, not in {spec.dtype}")
        values, sums = self._library.varlen(
            q=last_dense(q),
            k=last_dense(k),
            v=last_dense(v),
            cu_seqlens_q=cu[0],
            cu_seqlens_k=cu[1],
            max_seqlen_q=len(q),
            max_seqlen_k=len(k),
            min_seqlen_q=0,
            softmax_scale=spec.scale,
            logits_soft_cap=spec.soft_cap,
            causal=causal,
            window_size=(window - 1, 0) if window and causal else (-1, -1),
            return_lse=True,
        )
        blind = _blind(len(q), *cu, causal=causal)
        out.copy_(values.masked_fill(blind[:, None, None], 0))
        if lse is not None:
            lse.copy_(sums.t().masked_fill(blind[:, None], -torch.inf))

    def gather(
        self, plan: AttentionPlan, layer: LayerHandle, row: int, start: int, stop: int, out: tuple[Tensor, Tensor]
    ) -> None:
        """Copy stored tokens [start, stop) of a row, multiplied by their scales."""
        assert isinstance(plan, AiterPlan)
        _, view = plan.step
        token = torch.arange(start, stop, device=view.page_table.device)
        slots = view.page_table[row, token // view.page_tokens] * view.page_tokens + token % view.page_tokens
        if self._spec.mla is not None:
            entries, rank = slots_of(layer, "latent_rope")[slots], self._spec.mla.rank
            out[0].copy_(entries[:, :rank])
            out[1].copy_(entries[:, rank:])
            return
        for into, name in zip(out, ("k", "v"), strict=True):
            entries = slots_of(layer, name)[slots]
            if layer.scales is not None and entries.dtype.itemsize == 1:
                entries = entries.float() * layer.scales[name].reshape(-1, 1)
            into.copy_(entries)

    def merge(self, out: Tensor, lse: Tensor, out2: Tensor, lse2: Tensor) -> None:
        """Weights from the log-sum-exps; a part that saw nothing has none."""
        total = torch.logaddexp(lse, lse2)
        first, second = (torch.exp(one - total).nan_to_num(0.0)[..., None] for one in (lse, lse2))
        out.copy_(out.float() * first + out2.float() * second)
        lse.copy_(total)


def _blind(tokens: int, cu_q: Tensor, cu_k: Tensor, *, causal: bool) -> Tensor:
    """Which queries [tokens] see no key: bool. What a kernel gives for them is not defined."""
    token = torch.arange(tokens, dtype=torch.int32, device=cu_q.device)
    row = torch.bucketize(token, cu_q[1:], right=True)
    keys = (cu_k[1:] - cu_k[:-1])[row]
    return keys + token - cu_q[1:][row] + 1 <= 0 if causal else keys <= 0
