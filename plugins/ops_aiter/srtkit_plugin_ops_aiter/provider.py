"""The operators as the contract calls them, each one call of aiter, every argument by its keyword.

What aiter computes in which order of memory is settled here; which sizes it takes is settled before (`accepts`).
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor

from srtkit.spec.ops import ExpertsOp, Op, OpFacts, OpsProvider
from srtkit_plugin_ops_aiter.library import Library

NEOX = 0
"""aiter's `rotate_style` in which the halves of a head are exchanged."""


class AiterOps(OpsProvider):
    """Hands out its own methods. Steps without tokens launch nothing: a grid may not be empty.

    `device` holds the constants of the rotation, of up to `max_tokens` tokens a step.
    """

    def __init__(self, library: Library, device: torch.device, max_tokens: int) -> None:
        self._aiter = library
        self._second_rows = torch.arange(1, 2 * max_tokens, 2, dtype=torch.int64, device=device).unsqueeze(1)

    def bind(self, facts: OpFacts) -> Op:
        if facts.op == "experts":
            return AiterExperts(self._aiter)
        if facts.op == "route":
            k, renormalised = facts.sizes["per_token"], bool(facts.sizes["renormalised"])
            return partial(self.route, per_token=k, renormalised=renormalised)
        ops: dict[str, Op] = {op.__name__: op for op in (self.rms_norm, self.add_rms_norm, self.silu_mul, self.rope)}
        return ops[facts.op]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [T, H], rows may be strided → [T, H]."""
        if not x.shape[0]:
            return torch.empty_like(x)
        return cast(Tensor, self._aiter.rms_norm(input=_dense_rows(x), weight=weight, epsilon=eps))

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`residual` [T, H] += x, in place, then the norm of it. Each thread reads a value before it stores there."""
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if x.shape[0]:
            assert residual.is_contiguous(), "the residual is dense"
            self._aiter.rmsnorm2d_fwd_with_add(
                out=out,
                input=_dense_rows(x),
                residual_in=residual,
                residual_out=residual,
                weight=weight,
                epsilon=eps,
            )
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2 I] → [T, I]. aiter knows no strides here."""
        tokens, width = gate_up.shape
        out = torch.empty(tokens, width // 2, dtype=gate_up.dtype, device=gate_up.device)
        if tokens:
            self._aiter.silu_and_mul(out=out, input=gate_up.contiguous())
        return out

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotates the first R of each head of q and k in place; tokens and heads may be strided.

        aiter wants tables of R / 2 angles and a row number for each token. cos and sin [T, 1, R] are such tables of
        2 T rows: of token t row 2 t + 1, the second half, is the plain one of both (the first of sin is negated).
        """
        tokens, half = q.shape[0], cos.shape[-1] // 2
        assert tokens <= len(self._second_rows), "more tokens than a step has"
        if tokens:
            self._aiter.rope_cached_positions_2c_fwd_inplace(
                input_x=q.unsqueeze(1),
                input_y=k.unsqueeze(1),
                cos=cos.reshape(2 * tokens, 1, 1, half),
                sin=sin.reshape(2 * tokens, 1, 1, half),
                positions=self._second_rows[:tokens],
                rotate_style=NEOX,
                reuse_freqs_front_part=True,
                nope_first=False,
            )

    def route(self, logits: Tensor, per_token: int, renormalised: bool) -> tuple[Tensor, Tensor]:
        """[T, E] → weights float32 and experts int32, [T, k]. aiter knows no strides here, and wants scratch memory."""
        shape = (logits.shape[0], per_token)
        weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
        experts, places = torch.empty(2, *shape, dtype=torch.int32, device=logits.device)
        if shape[0]:
            self._aiter.topk_softmax(
                topk_weights=weights,
                topk_indices=experts,
                token_expert_indices=places,
                gating_output=logits.contiguous(),
                need_renorm=renormalised,
            )
        return weights, experts


class AiterExperts(ExpertsOp):
    """On weights that lie in blocks of 16 by 32, as aiter's matrix cores read them.

    An expert's word is added to the result in 16 bits, in no fixed order: the last bit may differ from run to run.
    """

    def __init__(self, library: Library) -> None:
        self._aiter = library

    def pack(self, gate_up: Tensor, down: Tensor) -> bool:
        """What aiter returns is kept as it is: later versions read from it, by an attribute, that it is shuffled."""
        self._gate_up, self._down = self._aiter.shuffle_weight(x=gate_up), self._aiter.shuffle_weight(x=down)
        return False

    def __call__(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        if not x.shape[0]:
            return torch.empty_like(x)
        said = self._aiter.fused_moe(
            hidden_states=x.contiguous(),
            w1=self._gate_up,
            w2=self._down,
            topk_weight=weights.contiguous(),
            topk_ids=experts.to(torch.int32).contiguous(),
        )
        return cast(Tensor, said)


def _dense_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
