"""Operators that compute something else."""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.ops import Op
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.ops.wrap import with_op


def _narrow(inner: Op) -> Op:
    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    return rms_norm


narrow_norm = mutant(
    "ops.narrow_norm",
    of="cpu",
    sentence="The norm's squares are rounded to the dtype of x.",
    killed_by=("ops.rms_norm",),
)(with_op("rms_norm", _narrow))


def _first_eps(inner: Op) -> Op:
    kept: list[float] = []

    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        kept.append(eps)
        return inner(x, weight, kept[0])  # type: ignore[no-any-return]

    return rms_norm


first_eps = mutant(
    "ops.first_eps",
    of="cpu",
    sentence="The norm keeps the eps of its first call.",
    killed_by=("ops.rms_norm",),
)(with_op("rms_norm", _first_eps))


def _residual_stays(inner: Op) -> Op:
    return lambda x, residual, weight, eps: inner(x, residual.clone(), weight, eps)


residual_stays = mutant(
    "ops.residual_stays",
    of="cpu",
    sentence="The sum is normed and not kept in the residual.",
    killed_by=("ops.add_rms_norm",),
)(with_op("add_rms_norm", _residual_stays))


def _exchanged(inner: Op) -> Op:
    return lambda gate_up: inner(gate_up.roll(gate_up.shape[-1] // 2, -1))


gate_for_up = mutant(
    "ops.gate_for_up",
    of="cpu",
    sentence="Takes the first half for up, the second for gate.",
    killed_by=("ops.silu_mul",),
)(with_op("silu_mul", _exchanged))


def _halves_of_the_head(inner: Op) -> Op:
    def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
        size = cos.shape[-1]
        for x in (q, k):
            swapped = x.roll(x.shape[-1] // 2, -1)[..., :size]
            x[..., :size] = x[..., :size] * cos + swapped * sin

    return rope


halves_of_the_head = mutant(
    "ops.halves_of_the_head",
    of="cpu",
    sentence="The rotation exchanges halves of the head in place of halves of what is rotated.",
    killed_by=("ops.rope",),
)(with_op("rope", _halves_of_the_head))


def _dense(inner: Op) -> Op:
    def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
        inner(q.contiguous(), k.contiguous(), cos, sin)

    return rope


dense_copy = mutant(
    "ops.dense_copy",
    of="cpu",
    sentence="Rotates a dense copy of what is strided.",
    killed_by=("ops.rope_strided",),
    note="loses the rotation; ops.neighbours loses what stands beside",
)(with_op("rope", _dense))


def _neighbours(inner: Op) -> Op:
    def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
        if q.stride() == k.stride() and not q.is_contiguous():
            low = min((q, k), key=lambda x: x.data_ptr())
            both = low.as_strided((q.shape[0], q.shape[1] + k.shape[1] + 1, q.shape[2]), q.stride())
            inner(both, both[:, :0], cos, sin)
        else:
            inner(q, k, cos, sin)

    return rope


neighbours = mutant(
    "ops.neighbours",
    of="cpu",
    sentence="Rotates v's first head with q and k.",
    killed_by=("ops.rope_strided",),
)(with_op("rope", _neighbours))


def _weight_of_q(inner: Op) -> Op:
    def norm_rope(
        q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float
    ) -> None:
        inner(q, k, q_weight, q_weight, cos, sin, eps)

    return norm_rope


weight_of_q = mutant(
    "ops.weight_of_q",
    of="cpu",
    sentence="The heads of k are normed with the weight of q.",
    killed_by=("ops.norm_rope",),
)(with_op("norm_rope", _weight_of_q))


def _without_tail(inner: Op) -> Op:
    def silu_mul(gate_up: Tensor) -> Tensor:
        out: Tensor = inner(gate_up)
        if out.shape[-1] > 192:
            out[:, out.shape[-1] // 64 * 64 :] = 0
        return out

    return silu_mul


without_tail = mutant(
    "ops.without_tail",
    of="cpu",
    sentence="Sizes above 192 are computed in blocks of 64, without the rest.",
    killed_by=("ops.any_size",),
)(with_op("silu_mul", _without_tail))
