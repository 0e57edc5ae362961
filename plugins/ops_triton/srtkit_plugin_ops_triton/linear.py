"""The operator `linear`: which kernel a number of rows gets, and with which blocks, as measured on an H200.

One row, and up to `FEW_ROWS`, by kernels of ours that keep memory busy where libraries leave some of it idle; more by
the library that torch calls.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn import functional

from srtkit.spec.ops import OpFacts, WeightOp
from srtkit_plugin_ops_triton import linear_kernels as kernels
from srtkit_plugin_ops_triton.launching import ALONE, Launch, dense_rows

MAX_BLOCK_K, MANY_OUTPUTS = 1024, 2048
"""Of a linear of one row: inputs of a turn; outputs from which on a program has two of them."""
FEW_ROWS = BLOCK_T = 64
"""As many as the smallest product of a warp group has: with more the library is as fast."""
LARGE_WEIGHT, FEWER_ROWS = 1 << 24, 8
"""A weight of this many values keeps memory busy in the library, too, while it has at most so many rows."""
BLOCK_K, AHEAD, PROGRAMS = 128, 8, 132
"""Of a linear of few rows: inputs of a turn; lines fetched before the wait; programs that an H200 runs at once."""
SIXTEEN_BITS = {"bfloat16", "float16"}
ARCHITECTURES = {"sm90"}
"""Where the blocks of a few rows fit and were measured."""


class Blocks(NamedTuple):
    """What a program of `few_rows_linear_kernel` has: outputs, turns on their way, and into how many K is split."""

    n: int
    stages: int
    splits: int


def few_rows_of(facts: OpFacts) -> bool:
    """Whether a few rows have a kernel here: on the GPUs it was measured on, and in the interpreter."""
    device = facts.device
    return facts.dtype in SIXTEEN_BITS and (device.platform == "cpu" or device.architecture in ARCHITECTURES)


def row_blocks(n: int, k: int) -> tuple[int, int, int]:
    """For one row: outputs of a program, inputs of a turn, and warps (bench/gpu/linear.py --sweep).

    Few outputs: many programs hide each other's waits. Long rows keep more warps busy.
    """
    block_k = min(MAX_BLOCK_K, int(triton.next_power_of_2(k)))
    return 2 if k <= MAX_BLOCK_K and n > MANY_OUTPUTS else 1, block_k, 4 if k <= 2 * MAX_BLOCK_K else 8


def few_rows_blocks(n: int, k: int) -> Blocks:
    """For a few rows: the narrowest blocks of outputs that all run at once, else wide ones; splits fill the GPU."""
    each = next((one for one in (32, 64) if n <= one * PROGRAMS), 128)
    wanted = max(1, round(PROGRAMS / triton.cdiv(n, each)))
    turns = k // BLOCK_K
    return Blocks(each, {32: 7, 64: 5, 128: 4}[each], next(one for one in range(wanted, 0, -1) if turns % one == 0))


class Linear(WeightOp):
    """x [T, in] → [T, out]; `few_rows` says whether a few of them have a kernel of their own."""

    def __init__(self, launch: Launch = ALONE, few_rows: bool = False) -> None:
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self._launch = launch
        self._few_rows = few_rows
        self._one = 1, 1, 4
        self._few = Blocks(32, 1, 1)
        self._arrived: Tensor | None = None

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keeps both as they are."""
        self._weight, self._bias = weight.contiguous(), bias
        n, k = weight.shape
        self._one = row_blocks(n, k)
        self._arrived = None
        if self._few_rows and k % BLOCK_K == 0:
            self._few = few_rows_blocks(n, k)
            blocks = triton.cdiv(n, self._few.n) if self._few.splits > 1 else 1
            self._arrived = torch.zeros(blocks, dtype=torch.int32, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] → [T, out]."""
        weight, rows = self._weight, x.shape[0]
        assert weight is not None, "called before pack"
        if rows == 1:
            return self._of_one(dense_rows(x), weight)
        least = FEWER_ROWS if weight.numel() >= LARGE_WEIGHT else 1
        if self._arrived is not None and least < rows <= FEW_ROWS:
            return self._of_few(dense_rows(x), weight, self._arrived)
        return functional.linear(x, weight, self._bias)

    def _of_one(self, x: Tensor, weight: Tensor) -> Tensor:
        (n, k), (block_n, block_k, warps) = weight.shape, self._one
        out = torch.empty(1, n, dtype=x.dtype, device=x.device)
        kernels.row_linear_kernel[(triton.cdiv(n, block_n),)](
            *(x, weight, self._bias, out, n),
            K=k,
            BIAS=self._bias is not None,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            num_warps=warps,
            **self._launch,
        )
        return out

    def _of_few(self, x: Tensor, weight: Tensor, arrived: Tensor) -> Tensor:
        (rows, k), n, (each, stages, splits) = x.shape, weight.shape[0], self._few
        blocks = triton.cdiv(n, each)
        out = torch.empty(rows, n, dtype=x.dtype, device=x.device)
        parts = out
        if splits > 1:
            parts = torch.empty(blocks * splits * BLOCK_T * each, dtype=torch.float32, device=x.device)
        kernels.few_rows_linear_kernel[(blocks, splits)](
            *(x, weight, self._bias, out, parts, arrived, rows, n, x.stride(0)),
            SPAN=k // splits,
            SPLITS=splits,
            BIAS=self._bias is not None,
            BLOCK_T=BLOCK_T,
            BLOCK_N=each,
            BLOCK_K=BLOCK_K,
            STAGES=stages,
            AHEAD=AHEAD,
            num_warps=4,
            **self._launch,
        )
        return out

    @property
    def keeps_weight(self) -> bool:
        """The loaded tensor itself."""
        return True
