"""From logits to token ids, as the contract calls the operators: shapes, strides and grids around the kernels."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from srtkit_plugin_ops_triton import sampling_kernels as kernels
from srtkit_plugin_ops_triton.launching import ALONE, Launch, dense_rows

FEW_ROWS, FEW_BLOCK, BLOCK = 16, 2048, 4096
"""Logits of a program that looks for the largest: fewer where rows alone do not fill the device."""
SAMPLE_BLOCK, SAMPLE_WARPS = 8192, 16


def argmax(logits: Tensor, *, launch: Launch = ALONE) -> Tensor:
    """[N, V] → int32 [N]: the smallest index of a row's maximum; NaN is above all. Reads each logit once."""
    logits = dense_rows(logits)
    rows, vocab = logits.shape
    out = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if rows:
        block = min(FEW_BLOCK if rows <= FEW_ROWS else BLOCK, triton.next_power_of_2(vocab))
        parts = triton.cdiv(vocab, block)
        keys, ids = torch.empty(2, rows, parts, dtype=torch.int32, device=logits.device)
        kernels.argmax_part_kernel[(rows, parts)](
            *(logits, keys, ids, logits.stride(0), vocab), PARTS=parts, BLOCK=block, **launch
        )
        kernels.argmax_kernel[(rows,)](keys, ids, out, PARTS=parts, PAD=triton.next_power_of_2(parts), **launch)
    return out


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seed: Tensor, position: Tensor,
    *, launch: Launch = ALONE,
) -> Tensor:  # fmt: skip
    """Logits [N, V] and parameters [N] → int32 [N]. One program a row: a row's token knows of no other."""
    logits = dense_rows(logits)
    rows, vocab = logits.shape
    out = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if rows:
        kernels.sample_kernel[(rows,)](
            *(logits, temperature, top_k, top_p, min_p, seed, position, out, logits.stride(0)),
            V=vocab,
            BLOCK=min(SAMPLE_BLOCK, triton.next_power_of_2(vocab)),
            num_warps=SAMPLE_WARPS,
            **launch,
        )
    return out


def penalize(
    logits: Tensor, slot: Tensor, counts: Tensor, prompted: Tensor, repetition: Tensor, presence: Tensor,
    frequency: Tensor, *, launch: Launch = ALONE,
) -> None:  # fmt: skip
    """Logits [N, V] in place, by what slots [S, V] have seen; parameters [N]."""
    rows, vocab = logits.shape
    if rows:
        assert logits.stride(1) == 1, "rows of logits are dense"
        block = min(BLOCK, triton.next_power_of_2(vocab))
        kernels.penalize_kernel[(rows, triton.cdiv(vocab, block))](
            *(logits, slot, counts.contiguous(), prompted.contiguous(), repetition, presence, frequency),
            logits.stride(0),
            V=vocab,
            BLOCK=block,
            **launch,
        )
